#include "tests/support/gguf_writer.h"

namespace quire::test {
namespace {

constexpr size_t kAlignment = 32;

template <class T>
std::string Raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}
std::string Text(const std::string& text) { return Raw(static_cast<uint64_t>(text.size())) + text; }
std::string Key(const std::string& key, uint32_t type) { return Text(key) + Raw(type); }
void Pad(std::string* bytes) {
  bytes->resize((bytes->size() + kAlignment - 1) / kAlignment * kAlignment);
}

}  // namespace

void GgufWriter::AddU32(const std::string& key, uint32_t value) {
  ++num_keys_;
  keys_ += Key(key, 4) + Raw(value);
}
void GgufWriter::AddF32(const std::string& key, float value) {
  ++num_keys_;
  keys_ += Key(key, 6) + Raw(value);
}
void GgufWriter::AddBool(const std::string& key, bool value) {
  ++num_keys_;
  keys_ += Key(key, 7) + Raw(static_cast<uint8_t>(value));
}
void GgufWriter::AddString(const std::string& key, const std::string& value) {
  ++num_keys_;
  keys_ += Key(key, 8) + Text(value);
}
void GgufWriter::AddStrings(const std::string& key, const std::vector<std::string>& values) {
  ++num_keys_;
  keys_ += Key(key, 9) + Raw(uint32_t{8}) + Raw(static_cast<uint64_t>(values.size()));
  for (const std::string& value : values) keys_ += Text(value);
}
void GgufWriter::AddI32s(const std::string& key, const std::vector<int32_t>& values) {
  ++num_keys_;
  keys_ += Key(key, 9) + Raw(uint32_t{5}) + Raw(static_cast<uint64_t>(values.size()));
  for (int32_t value : values) keys_ += Raw(value);
}

void GgufWriter::AddTensor(const std::string& name, const std::vector<int64_t>& shape,
                           uint32_t type, const std::string& bytes) {
  ++num_tensors_;
  infos_ += Text(name) + Raw(static_cast<uint32_t>(shape.size()));
  for (auto size = shape.rbegin(); size != shape.rend(); ++size) infos_ += Raw(*size);
  infos_ += Raw(type) + Raw(static_cast<uint64_t>(data_.size()));
  data_ += bytes;
  Pad(&data_);
}

std::string GgufWriter::Finish() const {
  std::string file =
      "GGUF" + Raw(uint32_t{3}) + Raw(num_tensors_) + Raw(num_keys_) + keys_ + infos_;
  Pad(&file);
  return file + data_;
}

}  // namespace quire::test
