// Files for tests: data in the tree, a place for what a test writes, and the models that
// scripts/fetch_model.sh brings.
#ifndef QUIRE_TESTS_SUPPORT_TEST_FILES_H_
#define QUIRE_TESTS_SUPPORT_TEST_FILES_H_

#include <optional>
#include <string>

namespace quire::test {

// Whether this build runs under a sanitizer: then tests of numbers take fewer of them.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// The absolute path of a file in the source tree.
std::string SourcePath(const std::string& relative);

// The content of a file in the source tree, decompressed if its name ends in .gz. Fails the process
// if it cannot be read: a test without its data is broken.
std::string ReadSourceFile(const std::string& relative);

// A directory of its own, removed with everything in it when this goes. In `parent`, or where the
// system keeps temporary files.
class TempDir {
 public:
  explicit TempDir(const std::string& parent = "");
  ~TempDir();
  TempDir(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The GGUF of SmolLM2-135M-Instruct: $QUIRE_TEST_SMOLLM2, else where scripts/fetch_model.sh puts
// it. Nothing if there is no such file. Use: SKIP_WITHOUT_SMOLLM2(path).
std::optional<std::string> SmolLm2Path();

}  // namespace quire::test

#define SKIP_WITHOUT_SMOLLM2(path)                                                       \
  const std::optional<std::string> path = ::quire::test::SmolLm2Path();                  \
  if (!path) {                                                                           \
    GTEST_SKIP() << "no SmolLM2 model: run scripts/fetch_model.sh smollm2-135m, or set " \
                    "QUIRE_TEST_SMOLLM2 to the .gguf file";                              \
  }                                                                                      \
  static_assert(true, "")

// For what is about numbers at real size only: tiny models run the same code under sanitizers.
#define SKIP_IF_SANITIZED()                                                             \
  if (::quire::test::kSanitized) {                                                      \
    GTEST_SKIP() << "numbers of a large model: minutes under a sanitizer, no new code"; \
  }                                                                                     \
  static_assert(true, "")

#endif  // QUIRE_TESTS_SUPPORT_TEST_FILES_H_
