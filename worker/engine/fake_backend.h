// FakeBackend: a backend for tests that computes nothing and checks everything.
//
// A token's "K and V" is a hash of the token and of the K and V before it, read where the block
// table says they are, and the next token is a function of that hash, the sampler slot and its
// history. So a wrong block, a block read before it was written, a missing copy or a slot mixed up
// changes the tokens or is refused. Simulate() says what a request must give when it runs alone.
#ifndef QUIRE_WORKER_ENGINE_FAKE_BACKEND_H_
#define QUIRE_WORKER_ENGINE_FAKE_BACKEND_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/text/tokenizer.h"
#include "worker/backend/backend.h"
#include "worker/engine/plan.h"
#include "worker/engine/request.h"

namespace quire::test {

inline constexpr int32_t kFakeVocab = 64;
inline constexpr int32_t kFakeEos = 60;      // special, "<eos>"
inline constexpr int32_t kFakeSpecial = 61;  // special, "<end>"
inline constexpr int32_t kNanToken = 63;     // makes K and V NaN from here on; never sampled

// Letters, a few longer tokens, halves of two-byte characters, special tokens.
class FakeTokenizer final : public Tokenizer {
 public:
  FakeTokenizer();
  std::vector<TokenId> Encode(std::string_view text, const EncodeOptions& options) const override;
  std::string DecodeBytes(std::span<const TokenId> ids, bool skip_special_tokens) const override;
  std::string_view TokenBytes(TokenId id) const override;
  bool IsSpecial(TokenId id) const override { return id == kFakeEos || id == kFakeSpecial; }
  int32_t vocab_size() const override { return kFakeVocab; }
  std::optional<TokenId> bos_id() const override { return std::nullopt; }
  std::optional<TokenId> eos_id() const override { return kFakeEos; }
  std::optional<TokenId> FindToken(std::string_view content) const override;
  const std::string& chat_template() const override { return none_; }

 private:
  std::vector<std::string> bytes_;  // [vocab]
  std::string none_;
};

class FakeBackend final : public Backend {
 public:
  struct Options {
    int32_t num_blocks = 64;
    int32_t block_size = 16;
    int32_t num_slots = 16;
    double seconds_per_row = 1e-6;
  };
  explicit FakeBackend(const Options& options);

  absl::Status Launch(const StepPlan& plan) override;
  absl::StatusOr<StepResult> Finish() override;
  int32_t num_blocks() const override { return options_.num_blocks; }
  const KvLayout& kv_layout() const override { return layout_; }
  int32_t num_slots() const override { return options_.num_slots; }
  int32_t vocab() const override { return kFakeVocab; }
  std::string numerics() const override { return "fake"; }

  void FailNextLaunch() { fail_next_ = true; }
  int64_t num_rows() const { return num_rows_; }  // run so far
  int64_t num_copies() const { return num_copies_; }

 private:
  struct Cell {
    int32_t position = -1;  // -1: never written
    int32_t token = -1;
    uint64_t hash = 0;
    bool nan = false;
  };
  struct Slot {
    SlotAttach attach;
    std::vector<int32_t> history;
  };
  Cell& CellOf(const StepPlan& plan, const PlanSequence& seq, int32_t position);
  absl::Status CheckPlan(const StepPlan& plan) const;
  absl::Status ReadPrefix(const StepPlan& plan, const PlanSequence& seq, int32_t end);

  const Options options_;
  KvLayout layout_;
  std::vector<Cell> cells_;  // [num_blocks, block_size]
  std::vector<std::optional<Slot>> slots_;
  std::deque<StepResult> results_;
  StepResult last_;
  int64_t next_step_ = 1;
  int64_t num_rows_ = 0, num_copies_ = 0;
  bool fail_next_ = false;
};

// What one choice must give.
struct Simulated {
  std::vector<int32_t> token_ids;  // new ones: without the resumed
  std::string text;
  FinishReason reason = FinishReason::kLength;
  std::string stop_matched;
  std::vector<float> logprobs;         // of the new tokens
  std::vector<float> prompt_logprobs;  // of prompt tokens 1, 2, ...
  bool not_finite = false;
};
Simulated Simulate(const EngineRequest& request, const std::vector<int32_t>& eos_ids,
                   const Tokenizer* tokenizer, int32_t choice);

}  // namespace quire::test

#endif  // QUIRE_WORKER_ENGINE_FAKE_BACKEND_H_
