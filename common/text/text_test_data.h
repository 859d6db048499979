// Data for the tests of this folder: files under tests/data, xz-compressed where they are large.
#ifndef QUIRE_COMMON_TEXT_TEXT_TEST_DATA_H_
#define QUIRE_COMMON_TEXT_TEXT_TEST_DATA_H_

#include <memory>
#include <string>
#include <vector>

#include "common/text/tokenizer.h"
#include "nlohmann/json.hpp"

namespace quire::test {

// Content of tests/data/<path>; a name that ends in ".xz" is decompressed. Ends the test program if
// the file cannot be read.
std::string ReadData(const std::string& path);

// One JSON value a line.
std::vector<nlohmann::ordered_json> ReadJsonLines(const std::string& path);

// The real tokenizers, loaded once a program ("tokenizer_qwen3", "tokenizer_cl100k").
const Tokenizer& RealTokenizer(const std::string& folder);

}  // namespace quire::test

#endif  // QUIRE_COMMON_TEXT_TEXT_TEST_DATA_H_
