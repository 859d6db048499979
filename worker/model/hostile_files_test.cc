// Broken and hostile model files: hundreds of mutations of good ones, and hand-made bombs. None may
// crash, hang or take memory; each is refused with its file's name, or loads into a usable model.
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/random_checkpoint.h"
#include "tests/support/test_archive.h"
#include "tests/support/test_files.h"
#include "worker/model/gguf.h"
#include "worker/model/model.h"
#include "worker/model/safetensors.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

template <class T>
std::string Raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Loads `path`; counts what happened. A model that loads must be usable.
void LoadOnce(const std::string& path, int* num_loaded) {
  LoadOptions options;
  options.path = path;
  const auto model = LoadModel(options);
  if (!model.ok()) {
    EXPECT_THAT(model.status().code(),
                AnyOf(absl::StatusCode::kInvalidArgument, absl::StatusCode::kUnimplemented,
                      absl::StatusCode::kNotFound, absl::StatusCode::kResourceExhausted))
        << model.status();
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(path));
    return;
  }
  ++*num_loaded;
  const Model& m = **model;
  std::vector<float> row(m.config.hidden);
  DequantizeRow(m.embedding, m.config.vocab - 1, row.data());
  DequantizeRow(m.head, 0, row.data());
  ASSERT_EQ(m.layers.size(), static_cast<size_t>(m.config.num_layers));
  ASSERT_EQ(m.final_norm.size(), row.size());
  if (m.tokenizer != nullptr) {
    const auto ids = m.tokenizer->Encode("The hen in the inn <|im_end|> 12", {});
    EXPECT_LE(m.tokenizer->Decode(ids, false).size(), 1000u);
  }
}

// One mutation of `bytes`; most hit the first `header_bytes`, where the structure is.
std::string Mutate(std::string bytes, size_t header_bytes, std::mt19937_64& rng) {
  const auto below = [&](size_t n) { return n == 0 ? 0 : static_cast<size_t>(rng() % n); };
  const size_t range = below(8) == 0 ? bytes.size() : std::min(bytes.size(), header_bytes);
  const size_t at = below(range);
  switch (below(8)) {
    case 0:
      bytes.resize(at);
      break;
    case 1:
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
      break;
    case 2: {  // a length or count bomb
      const uint64_t bombs[] = {
          UINT64_MAX, uint64_t{1} << 63, uint64_t{1} << 62, uint64_t{1} << 32, 0, rng()};
      const std::string bomb = Raw(bombs[below(6)]);
      bytes.replace(at, std::min<size_t>(8, bytes.size() - at), bomb);
      break;
    }
    case 3:
      bytes.replace(at, std::min<size_t>(4, bytes.size() - at), Raw(static_cast<uint32_t>(rng())));
      break;
    case 4:
      bytes.erase(at, 1 + below(16));
      break;
    case 5:
      bytes.insert(at, bytes.substr(below(range), 1 + below(64)));
      break;
    case 6: {  // a number of a text becomes another
      const size_t digit = bytes.find_first_of("0123456789", at);
      if (digit == std::string::npos) break;
      const size_t end = bytes.find_first_not_of("0123456789.", digit);
      const char* const values[] = {"-1", "0",     "1e308", "99999999999999999999", "null", "[]",
                                    "{}", "\"x\"", "true",  "4294967296",           "3"};
      bytes.replace(digit, (end == std::string::npos ? bytes.size() : end) - digit,
                    values[below(11)]);
      break;
    }
    default:
      for (int i = 0; i < 8; ++i) bytes[below(range)] = static_cast<char>(rng());
  }
  return bytes;
}

class HostileFiles : public testing::Test {
 protected:
  // A small model with a tokenizer.
  std::string SmallModel() {
    const std::string path = directory_.path() + "/small";
    const absl::Status status = test::WriteRandomCheckpoint(
        path, {.config_json = test::TinyConfigJson("qwen3", 16, 2, 1, 1, 32, 32, 280)});
    EXPECT_TRUE(status.ok()) << status;
    for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
      WriteFile(absl::StrCat(path, "/", name),
                test::CaseModelFiles().at(absl::StrCat("tiny_qwen3/", name)));
    }
    return path;
  }

  // Mutates `file` `count` times and loads `model` each time.
  void Run(const std::string& model, const std::string& file, size_t header_bytes, int count) {
    const std::string good = ReadFile(file);
    ASSERT_FALSE(good.empty());
    int num_loaded = 0;
    LoadOnce(model, &num_loaded);
    ASSERT_EQ(num_loaded, 1) << "the file is bad before any mutation";
    for (int seed = 1; seed <= count; ++seed) {
      SCOPED_TRACE(testing::Message() << file << ", mutation " << seed);
      std::mt19937_64 rng(seed);
      std::string bad = Mutate(good, header_bytes, rng);
      if (seed % 4 == 0) bad = Mutate(bad, header_bytes, rng);
      WriteFile(file, bad);
      LoadOnce(model, &num_loaded);
      if (HasFatalFailure()) return;
    }
    EXPECT_LT(num_loaded, count * 3 / 4);  // else the mutations hit nothing
    WriteFile(file, good);
  }

  test::TempDir directory_;
};

TEST_F(HostileFiles, MutatedSafetensors) {
  const std::string model = SmallModel();
  Run(model, model + "/model.safetensors", 1600, 80);
}

TEST_F(HostileFiles, MutatedConfig) {
  const std::string model = SmallModel();
  Run(model, model + "/config.json", 1 << 20, 80);
}

TEST_F(HostileFiles, MutatedTokenizer) {
  const std::string model = SmallModel();
  Run(model, model + "/tokenizer.json", 1 << 20, 80);
}

TEST_F(HostileFiles, MutatedIndexAndGenerationConfig) {
  const std::string model = test::ExtractCaseModel("shards_odd_names", directory_);
  Run(model, model + "/model.safetensors.index.json", 1 << 20, 30);
  Run(model, model + "/generation_config.json", 1 << 20, 20);
  Run(model, model + "/tokenizer_config.json", 1 << 20, 20);
}

TEST_F(HostileFiles, MutatedGguf) {
  const std::string model = test::ExtractCaseModel("gguf_good", directory_);
  Run(model, model, 8000, 100);
}

// --- Hand-made files ---------------------------------------------------------------------------

std::string SafetensorsBytes(const std::string& header, const std::string& data) {
  return Raw(static_cast<uint64_t>(header.size())) + header + data;
}

TEST_F(HostileFiles, SafetensorsHeaders) {
  const std::string path = directory_.path() + "/model.safetensors";
  const std::string four = std::string(16, 'x');
  const struct {
    std::string bytes;
    const char* named;  // "" = good
  } cases[] = {
      {"", "0 bytes"},
      {"1234567", "7 bytes"},
      {Raw(uint64_t{1} << 63), "header length is 9223372036854775808"},
      {Raw(uint64_t{1000}) + "{}", "header length is 1000, the limit is 2"},
      {SafetensorsBytes("", ""), "JSON is broken"},
      {SafetensorsBytes("[]", ""), "unexpected an array"},
      {SafetensorsBytes("{}", "x"), "end at byte 0"},
      {SafetensorsBytes("{}  ", ""), ""},
      {SafetensorsBytes(std::string(1 << 20, '['), ""), "unexpected an array"},
      {SafetensorsBytes(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", four), ""},
      {SafetensorsBytes(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", "1234"), ""},
      {SafetensorsBytes(R"({"__metadata__":{"x":"y"}})", ""), ""},
      {SafetensorsBytes(R"({"__metadata__":{"x":1}})", ""), "unexpected a number"},
      {SafetensorsBytes(R"({"__metadata__":{"x":{}}})", ""), "unexpected an object"},
      {SafetensorsBytes(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}x)", four),
       "JSON is broken"},
      {SafetensorsBytes(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                            "a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
                        four),
       "\"a\" twice"},
      {SafetensorsBytes(R"({"a":{"dtype":"F33","shape":[4],"data_offsets":[0,16]}})", four), "F33"},
      {SafetensorsBytes(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,15]}})", four),
       "takes 16 bytes"},
      {SafetensorsBytes(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0]}})", four),
       "must be 2"},
      {SafetensorsBytes(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16,3]}})", four),
       "more than 2"},
      {SafetensorsBytes(R"({"a":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}})", four), "-4"},
      {SafetensorsBytes(R"({"a":{"dtype":"F32","shape":[4.5],"data_offsets":[0,16]}})", four),
       "4.5"},
      {SafetensorsBytes(
           R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16]}})", four),
       "too large"},
      {SafetensorsBytes(
           R"({"a":{"dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0]}})", ""),
       "2^62"},
      {SafetensorsBytes(
           R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,16]}})", four),
       "more than 8 dimensions"},
      {SafetensorsBytes(R"({"a":{"dtype":"F32","shape":[4]}})", four), "lacks data_offsets"},
      {SafetensorsBytes(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16],"x":1}})", four),
       "unknown field \"x\""},
      {SafetensorsBytes(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                            "b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})",
                        four),
       "leave a hole after \"a\""},
      {SafetensorsBytes(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[4,16]}})", four),
       "leave a hole after the start"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.bytes.substr(0, 120));
    WriteFile(path, c.bytes);
    TensorFiles files;
    const absl::Status status = AddSafetensors(path, &files);
    if (*c.named == '\0') {
      EXPECT_TRUE(status.ok()) << status;
      continue;
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.named));
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  }
}

std::string GgufString(const std::string& text) {
  return Raw(static_cast<uint64_t>(text.size())) + text;
}
std::string GgufHead(uint64_t num_tensors, uint64_t num_keys, uint32_t version = 3) {
  return "GGUF" + Raw(version) + Raw(num_tensors) + Raw(num_keys);
}
std::string GgufTensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                       uint64_t offset) {
  std::string out = GgufString(name) + Raw(static_cast<uint32_t>(dims.size()));
  for (uint64_t d : dims) out += Raw(d);
  return out + Raw(type) + Raw(offset);
}
std::string GgufU32(const std::string& key, uint32_t value) {
  return GgufString(key) + Raw(uint32_t{4}) + Raw(value);
}
// Pads to the data and adds `data_bytes` of it.
std::string WithData(std::string head, size_t data_bytes) {
  head.resize((head.size() + 31) / 32 * 32);
  return head + std::string(data_bytes, '\1');
}

TEST_F(HostileFiles, GgufHeaders) {
  const std::string path = directory_.path() + "/model.gguf";
  const std::string tensor = GgufTensor("a", {8}, 0, 0);
  const struct {
    std::string bytes;
    const char* named;  // "" = good
  } cases[] = {
      {"", "magic"},
      {"GGUX", "magic is \"GGUX\""},
      {"GGUF", "version"},
      {GgufHead(0, 0, 2), "version 2"},
      {GgufHead(0, 0, 0x03000000), "version 50331648"},
      {GgufHead(0, 0), ""},
      {GgufHead(UINT64_MAX, 0), "tensor count: is 18446744073709551615"},
      {GgufHead(0, UINT64_MAX), "metadata count: is 18446744073709551615"},
      {GgufHead(0, 1) + GgufU32("k", 1), ""},
      {GgufHead(0, 2) + GgufU32("k", 1) + GgufU32("k", 1), "key \"k\": is there twice"},
      {GgufHead(0, 1) + GgufString("k") + Raw(uint32_t{13}) + Raw(uint64_t{0}), "value type is 13"},
      {GgufHead(0, 1) + GgufString("k") + Raw(uint32_t{9}) + Raw(uint32_t{99}) + Raw(uint64_t{0}),
       "value type is 99"},
      {GgufHead(0, 1) + GgufString("k") + Raw(uint32_t{9}) + Raw(uint32_t{4}) + Raw(uint64_t{2}) +
           Raw(uint32_t{1}),
       "array count: is 2, the limit is 1"},
      {GgufHead(0, 1) + GgufU32("general.alignment", 3), "general.alignment is 3"},
      {GgufHead(0, 1) + GgufU32("general.alignment", 1 << 20), "1048576"},
      {GgufHead(0, 1) + GgufU32("split.count", 2), "split.count is 2"},
      {WithData(GgufHead(1, 0) + tensor, 32), ""},
      {WithData(GgufHead(1, 0) + tensor, 31), "past the file's 31 bytes"},
      {GgufHead(1, 0) + tensor, "past the file's 0 bytes"},
      {WithData(GgufHead(2, 0) + tensor + tensor, 64), "\"a\" is there twice"},
      {WithData(GgufHead(2, 0) + tensor + GgufTensor("b", {8}, 0, 0), 64), "overlaps \"a\""},
      {WithData(GgufHead(2, 0) + tensor + GgufTensor("b", {8}, 0, 32), 64), ""},
      {WithData(GgufHead(1, 0) + GgufTensor("a", {8}, 0, 4), 64), "no multiple"},
      {WithData(GgufHead(1, 0) + GgufTensor("a", {8}, 0, UINT64_MAX - 31), 64), "2^62"},
      {WithData(GgufHead(1, 0) + GgufTensor("a", {8}, 0, (uint64_t{1} << 62) - 32), 64), "past"},
      {WithData(GgufHead(1, 0) + GgufTensor("a", {uint64_t{1} << 32, uint64_t{1} << 32}, 0, 0), 64),
       "too large"},
      {WithData(GgufHead(1, 0) + GgufTensor("a", {UINT64_MAX}, 0, 0), 64), "dimension 0"},
      {WithData(GgufHead(1, 0) + GgufTensor("a", {8}, 4, 0), 64), "unknown type 4"},
      {WithData(GgufHead(1, 0) + GgufTensor("a", {8}, 2, 0), 64), "blocks of 32"},
      {WithData(GgufHead(1, 0) + GgufTensor("a", {1, 1, 1, 1, 1}, 0, 0), 64), "5 dimensions"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.bytes.substr(0, 60));
    WriteFile(path, c.bytes);
    const auto file = OpenGguf(path);
    if (*c.named == '\0') {
      EXPECT_TRUE(file.ok()) << file.status();
      continue;
    }
    EXPECT_THAT(file.status().code(),
                AnyOf(absl::StatusCode::kInvalidArgument, absl::StatusCode::kUnimplemented));
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(c.named));
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(path));
  }
}

// Big files of nothing: bounded by limits, not by patience.
TEST_F(HostileFiles, LargeFilesOfNothingAreRefusedQuickly) {
  const auto start = std::chrono::steady_clock::now();
  const std::string gguf = directory_.path() + "/big.gguf";
  // Room for a count of 2^24 empty keys.
  WriteFile(gguf, GgufHead(0, 1 << 24));
  fs::resize_file(gguf, int64_t{1} << 32);
  const auto file = OpenGguf(gguf);
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("the limit is 100000"));
  const std::string path = directory_.path() + "/model.safetensors";
  WriteFile(path, Raw(uint64_t{200'000'000}));
  fs::resize_file(path, int64_t{1} << 32);
  TensorFiles files;
  EXPECT_THAT(std::string(AddSafetensors(path, &files).message()),
              HasSubstr("header length is 200000000, the limit is 100000000"));
  const std::string config = directory_.path() + "/config.json";
  WriteFile(config, "{");
  fs::resize_file(config, int64_t{1} << 32);
  EXPECT_THAT(std::string(LoadModelHeader(directory_.path()).status().message()),
              HasSubstr("4294967296 bytes, the limit is 1048576"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

}  // namespace
}  // namespace quire
