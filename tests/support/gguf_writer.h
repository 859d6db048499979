// Writes small GGUF files for tests: metadata, then tensors of any type as raw bytes.
#ifndef QUIRE_TESTS_SUPPORT_GGUF_WRITER_H_
#define QUIRE_TESTS_SUPPORT_GGUF_WRITER_H_

#include <cstdint>
#include <string>
#include <vector>

namespace quire::test {

class GgufWriter {
 public:
  void AddU32(const std::string& key, uint32_t value);
  void AddF32(const std::string& key, float value);
  void AddBool(const std::string& key, bool value);
  void AddString(const std::string& key, const std::string& value);
  void AddStrings(const std::string& key, const std::vector<std::string>& values);
  void AddI32s(const std::string& key, const std::vector<int32_t>& values);

  // `shape` outermost first; `type` is the format's number (0 F32, 1 F16, 8 Q8_0, ...).
  void AddTensor(const std::string& name, const std::vector<int64_t>& shape, uint32_t type,
                 const std::string& bytes);

  std::string Finish() const;  // the file

 private:
  uint64_t num_keys_ = 0, num_tensors_ = 0;
  std::string keys_, infos_, data_;
};

}  // namespace quire::test

#endif  // QUIRE_TESTS_SUPPORT_GGUF_WRITER_H_
