// Reads the goldens of tests/golden/parity: what transformers computed for a checkpoint and a
// prompt.
#ifndef QUIRE_TESTS_SUPPORT_PARITY_GOLDEN_H_
#define QUIRE_TESTS_SUPPORT_PARITY_GOLDEN_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/support/random_checkpoint.h"

namespace quire::test {

struct ParityGolden {
  std::string name;
  RandomCheckpoint checkpoint;  // config_json is empty for real models
  std::string sha256;           // of the checkpoint's tensors; "" = not kept
  std::string text;             // of the prompt, real models only
  std::vector<int32_t> prompt;
  struct Row {
    int32_t position = 0;
    std::vector<int32_t> ids;  // which entries of the vocabulary `logits` holds; empty = all
    std::vector<float> logits;
    double norm = 0;  // L2 norm over the whole vocabulary
  };
  std::vector<Row> rows;
  std::vector<int32_t> greedy;
  std::vector<float> margins;  // best minus second logit of each greedy step
};

// Of tests/golden/parity/<name>.json. A file that cannot be read ends the process.
ParityGolden LoadParityGolden(const std::string& name);

// Names of all goldens that begin with `prefix`, sorted.
std::vector<std::string> ParityGoldenNames(const std::string& prefix);

// How far `logits` (the whole row) is from the golden row.
struct LogitsError {
  double relative_l2 = 0;    // over the kept entries
  double max_abs = 0;        // over the kept entries
  double norm_relative = 0;  // of the norm over the whole vocabulary
};
LogitsError CompareLogits(const ParityGolden::Row& want, std::span<const float> logits);

}  // namespace quire::test

#endif  // QUIRE_TESTS_SUPPORT_PARITY_GOLDEN_H_
