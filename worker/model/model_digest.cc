#include "worker/model/model_digest.h"

#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/common/thread_pool.h"
#include "xxhash.h"

namespace quire {
namespace {

constexpr char kFormat[] = "quire.digest.v1";

std::string Sha256Hex(const std::string& text) {
  unsigned char hash[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  QUIRE_CHECK(EVP_Digest(text.data(), text.size(), hash, &size, EVP_sha256(), nullptr) == 1);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(hash), size));
}

// Length-prefixed, so that no two lists of fields collide.
void AppendField(std::string* out, const std::string& field) {
  absl::StrAppend(out, field.size(), ":", field, ";");
}

// Names what the digest was computed from, without reading it.
std::string Fingerprint(const TensorFiles& files, const ModelConfig& config) {
  std::string text = CanonicalConfig(config);
  for (const MappedFile& file : files.files) {
    struct stat info = {};
    if (stat(file.path().c_str(), &info) != 0) return "";
    AppendField(&text, std::filesystem::path(file.path()).filename().string());
    absl::StrAppend(&text, info.st_size, ",", info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec, ";");
  }
  return Sha256Hex(text);
}

}  // namespace

std::string ComputeModelDigest(const TensorFiles& files, const ModelConfig& config,
                               int num_threads) {
  std::vector<const TensorInfo*> tensors;
  for (const auto& [name, tensor] : files.tensors) tensors.push_back(&tensor);  // sorted by name
  std::vector<std::string> hashes(tensors.size());
  ThreadPool pool(std::max(1, num_threads));
  pool.ParallelFor(static_cast<int64_t>(tensors.size()), [&](int64_t i, int) {
    const TensorInfo& t = *tensors[i];
    // In pieces: what has been read need not stay resident.
    constexpr int64_t kPieceBytes = 4 << 20;
    XXH3_state_t* state = XXH3_createState();
    QUIRE_CHECK(state != nullptr && XXH3_128bits_reset(state) == XXH_OK);
    for (int64_t begin = 0; begin < t.size_bytes(); begin += kPieceBytes) {
      const int64_t size = std::min(kPieceBytes, t.size_bytes() - begin);
      XXH3_128bits_update(state, files.Data(t) + begin, size);
      files.Release(t, begin, begin + size);
    }
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
    XXH3_freeState(state);
    hashes[i].assign(reinterpret_cast<const char*>(canonical.digest), sizeof(canonical.digest));
  });
  std::string text;
  AppendField(&text, "quire.model.v1");
  AppendField(&text, CanonicalConfig(config));
  for (size_t i = 0; i < tensors.size(); ++i) {
    AppendField(&text, tensors[i]->name);
    AppendField(&text, tensors[i]->type.name);
    AppendField(&text, ShapeString(tensors[i]->shape));
    AppendField(&text, hashes[i]);
  }
  return Sha256Hex(text);
}

std::vector<std::string> DigestCachePaths(const std::string& model_path) {
  std::error_code error;
  std::vector<std::string> paths;
  paths.push_back(std::filesystem::is_directory(model_path, error)
                      ? absl::StrCat(model_path, "/.quire-digest")
                      : absl::StrCat(model_path, ".digest"));
  std::string home;
  if (const char* given = std::getenv("QUIRE_HOME"); given != nullptr && *given != '\0') {
    home = given;
  } else if (const char* user = std::getenv("HOME"); user != nullptr && *user != '\0') {
    home = absl::StrCat(user, "/.cache/quire");
  }
  const std::filesystem::path absolute = std::filesystem::absolute(model_path, error);
  if (!home.empty() && !error) {
    paths.push_back(
        absl::StrCat(home, "/digests/", Sha256Hex(absolute.lexically_normal().string())));
  }
  return paths;
}

std::string ReadKeptDigest(const std::vector<std::string>& cache_paths, const TensorFiles& files,
                           const ModelConfig& config) {
  const std::string fingerprint = Fingerprint(files, config);
  for (const std::string& path : cache_paths) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) continue;
    char bytes[256] = {};  // more than a good one has
    std::ifstream(path).read(bytes, sizeof(bytes) - 1);
    std::istringstream words(bytes);
    std::string format, kept_fingerprint, digest;
    if (!(words >> format >> kept_fingerprint >> digest)) continue;
    if (format == kFormat && kept_fingerprint == fingerprint && digest.size() == 64 &&
        digest.find_first_not_of("0123456789abcdef") == std::string::npos) {
      return digest;
    }
  }
  return "";
}

void KeepDigest(const std::vector<std::string>& cache_paths, const TensorFiles& files,
                const ModelConfig& config, const std::string& digest) {
  const std::string text =
      absl::StrCat(kFormat, " ", Fingerprint(files, config), " ", digest, "\n");
  for (const std::string& path : cache_paths) {
    std::error_code error;
    if (path != cache_paths.front()) {
      std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
    }
    // Whole or not at all: another process may read it.
    const std::string temporary = absl::StrCat(path, ".", getpid());
    std::ofstream file(temporary);
    file << text;
    file.close();
    if (file.good() && std::rename(temporary.c_str(), path.c_str()) == 0) return;
    (void)std::remove(temporary.c_str());
  }
}

}  // namespace quire
