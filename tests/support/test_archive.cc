#include "tests/support/test_archive.h"

#include <lzma.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/status_macros.h"

namespace quire::test {
namespace {

std::string DecompressXz(const std::string& packed) {
  lzma_stream stream = LZMA_STREAM_INIT;
  QUIRE_CHECK(lzma_stream_decoder(&stream, UINT64_MAX, 0) == LZMA_OK);
  stream.next_in = reinterpret_cast<const uint8_t*>(packed.data());
  stream.avail_in = packed.size();
  std::string out;
  lzma_ret result = LZMA_OK;
  while (result == LZMA_OK) {
    constexpr size_t kStep = 1 << 20;
    const size_t begin = out.size();
    out.resize(begin + kStep);
    stream.next_out = reinterpret_cast<uint8_t*>(out.data() + begin);
    stream.avail_out = kStep;
    result = lzma_code(&stream, LZMA_FINISH);
    out.resize(begin + kStep - stream.avail_out);
  }
  lzma_end(&stream);
  QUIRE_CHECK(result == LZMA_STREAM_END);
  return out;
}

}  // namespace

std::map<std::string, std::string> ReadTarXz(const std::string& relative) {
  const std::string tar = DecompressXz(ReadSourceFile(relative));
  constexpr size_t kBlock = 512;
  std::map<std::string, std::string> files;
  for (size_t at = 0; at + kBlock <= tar.size() && tar[at] != '\0';) {
    const std::string name = tar.substr(at, 100).c_str();
    const size_t size = std::strtoull(tar.substr(at + 124, 12).c_str(), nullptr, 8);
    const char type = tar[at + 156];
    at += kBlock;
    QUIRE_CHECK(at + size <= tar.size());
    if (type == '0') files[name] = tar.substr(at, size);
    at += (size + kBlock - 1) / kBlock * kBlock;
  }
  return files;
}

const std::map<std::string, std::string>& CaseModelFiles() {
  static const auto* const files = new std::map<std::string, std::string>(
      ReadTarXz("tests/data/cases_public/models/models.tar.xz"));
  return *files;
}

std::string ExtractCaseModel(const std::string& name, const TempDir& directory) {
  namespace fs = std::filesystem;
  std::string result;
  for (const auto& [file, content] : CaseModelFiles()) {
    const bool is_gguf = file == name + ".gguf";
    if (!is_gguf && file.rfind(name + "/", 0) != 0) continue;
    result = directory.path() + "/" + (is_gguf ? file : name);
    const fs::path path = fs::path(directory.path()) / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
  }
  QUIRE_CHECK(!result.empty());
  return result;
}

}  // namespace quire::test
