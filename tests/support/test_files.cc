#include "tests/support/test_files.h"

#include <unistd.h>
#include <zlib.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace quire::test {
namespace {

[[noreturn]] void Die(const std::string& what, const std::string& path) {
  std::fprintf(stderr, "test data: cannot %s %s\n", what.c_str(), path.c_str());
  std::abort();
}

}  // namespace

std::string SourcePath(const std::string& relative) {
  return std::string(QUIRE_SOURCE_DIR) + "/" + relative;
}

std::string ReadSourceFile(const std::string& relative) {
  const std::string path = SourcePath(relative);
  if (!relative.ends_with(".gz")) {
    std::ifstream f(path, std::ios::binary);
    std::ostringstream s;
    s << f.rdbuf();
    if (!f) Die("read", path);
    return std::move(s).str();
  }
  gzFile f = gzopen(path.c_str(), "rb");
  if (f == nullptr) Die("open", path);
  std::string out;
  char piece[1 << 16];
  int n = 0;
  while ((n = gzread(f, piece, sizeof(piece))) > 0) out.append(piece, static_cast<size_t>(n));
  if (n < 0) Die("decompress", path);
  gzclose(f);
  return out;
}

TempDir::TempDir(const std::string& parent) {
  const std::filesystem::path folder =
      parent.empty() ? std::filesystem::temp_directory_path() : std::filesystem::path(parent);
  std::string name = (folder / "quire_test_XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) Die("make", name);
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::optional<std::string> SmolLm2Path() {
  std::string path;
  if (const char* named = std::getenv("QUIRE_TEST_SMOLLM2"); named != nullptr && *named != 0) {
    path = named;
  } else {
    const char* quire_home = std::getenv("QUIRE_HOME");
    const char* home = std::getenv("HOME");
    path = quire_home != nullptr && *quire_home != 0
               ? quire_home
               : std::string(home != nullptr ? home : "") + "/.cache/quire";
    path += "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  }
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return std::nullopt;
  return path;
}

}  // namespace quire::test
