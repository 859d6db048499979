#include "tests/support/random_checkpoint.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/fp.h"
#include "common/status_macros.h"

namespace quire::test {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kFp8Block = 128;
constexpr double kFp8Rms = 140.0;
constexpr int64_t kPieceBytes = 1 << 20;  // what is held of a tensor at a time

uint64_t Hash64(uint64_t stream, uint64_t index) {
  uint64_t x = (index + (stream << 32) + 1) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

double Uniform(uint64_t stream, uint64_t index) {
  return static_cast<double>(Hash64(stream, index) >> 40) / 8388608.0 - 1.0;
}

enum class Kind { kMatrix, kHead, kEmbedding, kNorm, kBias };

// One tensor of the file. `fill(begin, count, out)` gives the bytes of elements [begin,
// begin+count).
struct FileTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape = {};
  int64_t element_bytes = 2;
  std::function<void(int64_t begin, int64_t count, char* out)> fill = {};
  int64_t count() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
};

class Tensors {
 public:
  explicit Tensors(const RandomCheckpoint& spec) : spec_(spec) {}

  void Add(const std::string& name, std::vector<int64_t> shape, Kind kind) {
    const uint64_t stream = spec_.seed * 1000 + ++number_;
    if (kind == Kind::kMatrix && spec_.fp8) return AddFp8(name, shape, stream);
    FileTensor t{.name = name, .dtype = spec_.dtype, .shape = shape};
    t.element_bytes = spec_.dtype == "F32" ? 4 : 2;
    const double gain = spec_.gain, embed = spec_.embed;
    const double root = std::sqrt(static_cast<double>(shape.back()));
    const auto value = [=](int64_t i) -> float {
      const double r = Uniform(stream, static_cast<uint64_t>(i));
      switch (kind) {
        case Kind::kMatrix:
        case Kind::kHead:
          return static_cast<float>(gain * r / root);
        case Kind::kEmbedding:
          return static_cast<float>(embed * r);
        case Kind::kNorm:
          return static_cast<float>(1.0 + 0.5 * r);
        case Kind::kBias:
          return static_cast<float>(0.5 * r);
      }
      return 0;
    };
    if (spec_.dtype == "F32") {
      t.fill = [=](int64_t begin, int64_t count, char* out) {
        for (int64_t i = 0; i < count; ++i) {
          const float x = value(begin + i);
          std::memcpy(out + 4 * i, &x, 4);
        }
      };
    } else {
      const bool bf16 = spec_.dtype == "BF16";
      t.fill = [=](int64_t begin, int64_t count, char* out) {
        for (int64_t i = 0; i < count; ++i) {
          const float x = value(begin + i);
          const uint16_t h = bf16 ? F32ToBf16(x) : F32ToF16(x);
          std::memcpy(out + 2 * i, &h, 2);
        }
      };
    }
    list.push_back(std::move(t));
  }

  std::vector<FileTensor> list;

 private:
  void AddFp8(const std::string& name, const std::vector<int64_t>& shape, uint64_t stream) {
    FileTensor codes{.name = name, .dtype = "F8_E4M3", .shape = shape, .element_bytes = 1};
    codes.fill = [stream](int64_t begin, int64_t count, char* out) {
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t h = Hash64(stream, static_cast<uint64_t>(begin + i));
        out[i] = static_cast<char>(((h >> 40) % 127) | (h >> 63 << 7));
      }
    };
    FileTensor scales{.name = name + "_scale_inv", .dtype = "F32", .element_bytes = 4};
    for (int64_t d : shape) scales.shape.push_back((d + kFp8Block - 1) / kFp8Block);
    const double gain = spec_.gain;
    const double root = std::sqrt(3.0 * static_cast<double>(shape[1]));
    scales.fill = [=](int64_t begin, int64_t count, char* out) {
      for (int64_t i = 0; i < count; ++i) {
        const double r = Uniform(stream + 500, static_cast<uint64_t>(begin + i));
        const float x = static_cast<float>((1.0 + 0.5 * r) * gain / (kFp8Rms * root));
        std::memcpy(out + 4 * i, &x, 4);
      }
    };
    list.push_back(std::move(codes));
    list.push_back(std::move(scales));
  }

  const RandomCheckpoint& spec_;
  uint64_t number_ = 0;
};

absl::StatusOr<std::vector<FileTensor>> ListTensors(const RandomCheckpoint& spec) {
  const Json c = Json::parse(spec.config_json, nullptr, /*allow_exceptions=*/false);
  if (!c.is_object()) return absl::InvalidArgumentError("config_json is not a JSON object");
  const std::string arch = c["model_type"];
  const int64_t hidden = c["hidden_size"], inner = c["intermediate_size"], vocab = c["vocab_size"];
  const int64_t head = c["head_dim"];
  const int64_t q_rows = c["num_attention_heads"].get<int64_t>() * head;
  const int64_t kv_rows = c["num_key_value_heads"].get<int64_t>() * head;
  Tensors t(spec);
  t.Add("model.embed_tokens.weight", {vocab, hidden}, Kind::kEmbedding);
  for (int i = 0; i < c["num_hidden_layers"].get<int>(); ++i) {
    const std::string p = absl::StrCat("model.layers.", i, ".");
    t.Add(p + "input_layernorm.weight", {hidden}, Kind::kNorm);
    for (const char* n : {"q", "k", "v"}) {
      const int64_t rows = n[0] == 'q' ? q_rows : kv_rows;
      t.Add(absl::StrCat(p, "self_attn.", n, "_proj.weight"), {rows, hidden}, Kind::kMatrix);
      if (arch == "qwen2")
        t.Add(absl::StrCat(p, "self_attn.", n, "_proj.bias"), {rows}, Kind::kBias);
    }
    t.Add(p + "self_attn.o_proj.weight", {hidden, q_rows}, Kind::kMatrix);
    if (arch == "qwen3") {
      t.Add(p + "self_attn.q_norm.weight", {head}, Kind::kNorm);
      t.Add(p + "self_attn.k_norm.weight", {head}, Kind::kNorm);
    }
    t.Add(p + "post_attention_layernorm.weight", {hidden}, Kind::kNorm);
    t.Add(p + "mlp.gate_proj.weight", {inner, hidden}, Kind::kMatrix);
    t.Add(p + "mlp.up_proj.weight", {inner, hidden}, Kind::kMatrix);
    t.Add(p + "mlp.down_proj.weight", {hidden, inner}, Kind::kMatrix);
  }
  t.Add("model.norm.weight", {hidden}, Kind::kNorm);
  if (!c["tie_word_embeddings"].get<bool>()) t.Add("lm_head.weight", {vocab, hidden}, Kind::kHead);
  return std::move(t.list);
}

absl::Status WriteText(const std::filesystem::path& path, const std::string& text) {
  std::ofstream f(path, std::ios::binary | std::ios::trunc);
  f << text;
  f.close();
  if (!f) return absl::InternalError(absl::StrCat("cannot write ", path.string()));
  return absl::OkStatus();
}

absl::Status WriteFile(const std::filesystem::path& path, std::span<const FileTensor> tensors,
                       EVP_MD_CTX* digest) {
  Json header;
  header["__metadata__"]["format"] = "pt";
  int64_t offset = 0;
  for (const FileTensor& t : tensors) {
    const int64_t end = offset + t.count() * t.element_bytes;
    header[t.name] = {{"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t size = text.size();
  std::ofstream f(path, std::ios::binary | std::ios::trunc);
  f.write(reinterpret_cast<const char*>(&size), 8);
  f << text;
  std::vector<char> piece(kPieceBytes);
  for (const FileTensor& t : tensors) {
    const int64_t step = kPieceBytes / t.element_bytes;
    for (int64_t begin = 0; begin < t.count(); begin += step) {
      const int64_t count = std::min(step, t.count() - begin);
      t.fill(begin, count, piece.data());
      f.write(piece.data(), count * t.element_bytes);
      if (digest != nullptr) {
        EVP_DigestUpdate(digest, piece.data(), static_cast<size_t>(count * t.element_bytes));
      }
    }
  }
  f.close();
  if (!f) return absl::InternalError(absl::StrCat("cannot write ", path.string()));
  return absl::OkStatus();
}

}  // namespace

std::string TinyConfigJson(const std::string& model_type, int head_size, int num_q_heads,
                           int num_kv_heads, int num_layers, int hidden, int inner, int vocab) {
  const std::string family =
      model_type == "qwen3" ? "Qwen3" : (model_type == "qwen2" ? "Qwen2" : "Llama");
  const Json c = {{"architectures", {family + "ForCausalLM"}},
                  {"model_type", model_type},
                  {"hidden_size", hidden},
                  {"intermediate_size", inner},
                  {"num_hidden_layers", num_layers},
                  {"num_attention_heads", num_q_heads},
                  {"num_key_value_heads", num_kv_heads},
                  {"head_dim", head_size},
                  {"vocab_size", vocab},
                  {"hidden_act", "silu"},
                  {"max_position_embeddings", 4096},
                  {"rms_norm_eps", 1e-6},
                  {"rope_theta", 10000.0},
                  {"tie_word_embeddings", false},
                  {"attention_bias", false},
                  {"torch_dtype", "bfloat16"},
                  {"eos_token_id", vocab - 1}};
  return c.dump();
}

absl::Status WriteRandomCheckpoint(const std::string& directory, const RandomCheckpoint& spec,
                                   std::string* sha256) {
  ASSIGN_OR_RETURN(const std::vector<FileTensor> tensors, ListTensors(spec));
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return absl::InternalError(absl::StrCat("cannot make ", directory));
  const std::filesystem::path folder(directory);
  RETURN_IF_ERROR(WriteText(folder / "config.json", spec.config_json));
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> digest(nullptr, &EVP_MD_CTX_free);
  if (sha256 != nullptr) {
    digest.reset(EVP_MD_CTX_new());
    EVP_DigestInit_ex(digest.get(), EVP_sha256(), nullptr);
  }
  const int files = std::max(1, spec.num_files);
  const int64_t per_file = (static_cast<int64_t>(tensors.size()) + files - 1) / files;
  Json index;
  for (int i = 0; i < files; ++i) {
    const int64_t begin = std::min<int64_t>(i * per_file, tensors.size());
    const int64_t end = std::min<int64_t>(begin + per_file, tensors.size());
    const std::string name = files == 1
                                 ? "model.safetensors"
                                 : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, files);
    const std::span<const FileTensor> part(tensors.data() + begin, end - begin);
    for (const FileTensor& t : part) index["weight_map"][t.name] = name;
    RETURN_IF_ERROR(WriteFile(folder / name, part, digest.get()));
  }
  if (files > 1) RETURN_IF_ERROR(WriteText(folder / "model.safetensors.index.json", index.dump()));
  if (sha256 != nullptr) {
    unsigned char bytes[32];
    EVP_DigestFinal_ex(digest.get(), bytes, nullptr);
    sha256->clear();
    for (unsigned char b : bytes) absl::StrAppend(sha256, absl::StrFormat("%02x", b));
  }
  return absl::OkStatus();
}

}  // namespace quire::test
