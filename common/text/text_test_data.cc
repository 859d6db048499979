#include "common/text/text_test_data.h"

#include <lzma.h>

#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <sstream>

#include "common/status_macros.h"

namespace quire::test {
namespace {

std::string Decompress(const std::string& xz) {
  lzma_stream stream = LZMA_STREAM_INIT;
  QUIRE_CHECK(lzma_stream_decoder(&stream, UINT64_MAX, 0) == LZMA_OK);
  stream.next_in = reinterpret_cast<const uint8_t*>(xz.data());
  stream.avail_in = xz.size();
  std::string out;
  std::vector<uint8_t> chunk(1 << 20);
  lzma_ret result = LZMA_OK;
  while (result == LZMA_OK) {
    stream.next_out = chunk.data();
    stream.avail_out = chunk.size();
    result = lzma_code(&stream, LZMA_FINISH);
    out.append(reinterpret_cast<const char*>(chunk.data()), chunk.size() - stream.avail_out);
  }
  lzma_end(&stream);
  QUIRE_CHECK(result == LZMA_STREAM_END);
  return out;
}

}  // namespace

std::string ReadData(const std::string& path) {
  std::ifstream file(std::string(QUIRE_SOURCE_DIR "/tests/data/") + path, std::ios::binary);
  if (!file) std::cerr << "cannot read tests/data/" << path << "\n";
  QUIRE_CHECK(file.good());
  std::ostringstream content;
  content << file.rdbuf();
  return path.ends_with(".xz") ? Decompress(content.str()) : content.str();
}

std::vector<nlohmann::ordered_json> ReadJsonLines(const std::string& path) {
  std::istringstream lines(ReadData(path));
  std::vector<nlohmann::ordered_json> rows;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) rows.push_back(nlohmann::ordered_json::parse(line));
  }
  QUIRE_CHECK(!rows.empty());
  return rows;
}

const Tokenizer& RealTokenizer(const std::string& folder) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<Tokenizer>> loaded;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Tokenizer>& tokenizer = loaded[folder];
  if (tokenizer == nullptr) {
    auto made = Tokenizer::FromHuggingFace(ReadData(folder + "/tokenizer.json.xz"),
                                           ReadData(folder + "/tokenizer_config.json"),
                                           folder + "/tokenizer.json");
    if (!made.ok()) std::cerr << made.status() << "\n";
    QUIRE_CHECK(made.ok());
    tokenizer = std::move(made).value();
  }
  return *tokenizer;
}

}  // namespace quire::test
