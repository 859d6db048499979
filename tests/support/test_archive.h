// Archives of test data: a .tar.xz in the source tree, unpacked without tools.
#ifndef QUIRE_TESTS_SUPPORT_TEST_ARCHIVE_H_
#define QUIRE_TESTS_SUPPORT_TEST_ARCHIVE_H_

#include <map>
#include <string>

#include "tests/support/test_files.h"

namespace quire::test {

// Regular files of a ustar archive compressed with xz, name to content. Fails the process if it
// cannot be read.
std::map<std::string, std::string> ReadTarXz(const std::string& relative);

// The model files of the public cases (tests/data/cases_public/models), name to content:
// "tiny_qwen3/config.json", "gguf_good.gguf". Unpacked once a process.
const std::map<std::string, std::string>& CaseModelFiles();

// Writes the case model `name`, a directory ("tiny_qwen3") or a GGUF file without its ending
// ("gguf_good"), into `directory` and gives its path. Fails the process if there is none.
std::string ExtractCaseModel(const std::string& name, const TempDir& directory);

}  // namespace quire::test

#endif  // QUIRE_TESTS_SUPPORT_TEST_ARCHIVE_H_
