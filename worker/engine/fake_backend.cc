#include "worker/engine/fake_backend.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace quire::test {
namespace {

uint64_t Mix(uint64_t a, uint64_t b) {  // splitmix64 of a combination
  uint64_t x = a * 0x9E3779B97F4A7C15u ^ (b + 0x632BE59BD9B4E019u);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

constexpr uint64_t kEmpty = 0x5157495245ull;

uint64_t Append(uint64_t hash, int32_t token) { return Mix(hash, static_cast<uint64_t>(token)); }

// The next token after a history with this hash.
int32_t PickToken(uint64_t hash, const SamplingParams& params, int32_t choice,
                  const std::vector<int32_t>& outputs, const std::vector<int32_t>& banned) {
  uint64_t x = Mix(Mix(hash, params.seed), static_cast<uint64_t>(choice));
  for (const int32_t token : outputs) x = Append(x, token);
  x = Mix(x, outputs.size());
  int32_t token = static_cast<int32_t>(x % (kFakeVocab - 1));  // never kNanToken
  if (static_cast<int32_t>(outputs.size()) >= params.min_tokens) return token;
  while (std::find(banned.begin(), banned.end(), token) != banned.end()) {
    token = (token + 1) % (kFakeVocab - 1);
  }
  return token;
}

float Logprob(uint64_t hash, int32_t token) {
  return -static_cast<float>(Append(hash, token) % 4096) / 256;
}

SampledToken Score(uint64_t hash, int32_t token, int32_t num_top) {
  SampledToken score;
  score.token = token;
  score.logprob = Logprob(hash, token);
  for (int32_t i = 0; i < num_top; ++i) score.top.push_back({i, Logprob(hash, i)});
  return score;
}

}  // namespace

// --- FakeTokenizer ---

FakeTokenizer::FakeTokenizer() : bytes_(kFakeVocab) {
  for (int32_t i = 0; i < 26; ++i) bytes_[i] = std::string(1, static_cast<char>('a' + i));
  const char* const longer[] = {" the", "ab", "abc", " ", "cd", "\n", "\n\n", "dead", "be", "ef"};
  for (int32_t i = 0; i < 10; ++i) bytes_[26 + i] = longer[i];
  for (int32_t i = 0; i < 10; ++i) bytes_[36 + i] = std::string(1, static_cast<char>('0' + i));
  bytes_[46] = "\xC3";  // the halves of é
  bytes_[47] = "\xA9";
  for (int32_t i = 48; i < 60; ++i) bytes_[i] = std::string(1, static_cast<char>('A' + i - 48));
  bytes_[kFakeEos] = "<eos>";
  bytes_[kFakeSpecial] = "<end>";
  bytes_[62] = "";
  bytes_[kNanToken] = "!";
}

std::vector<TokenId> FakeTokenizer::Encode(std::string_view text, const EncodeOptions&) const {
  std::vector<TokenId> ids;
  for (const char c : text) {
    if (c >= 'a' && c <= 'z') ids.push_back(c - 'a');
  }
  return ids;
}

std::string FakeTokenizer::DecodeBytes(std::span<const TokenId> ids,
                                       bool skip_special_tokens) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (!(skip_special_tokens && IsSpecial(id))) bytes += TokenBytes(id);
  }
  return bytes;
}

std::string_view FakeTokenizer::TokenBytes(TokenId id) const {
  return id >= 0 && id < kFakeVocab ? std::string_view(bytes_[id]) : std::string_view();
}

std::optional<TokenId> FakeTokenizer::FindToken(std::string_view content) const {
  for (TokenId id = 0; id < kFakeVocab; ++id) {
    if (!content.empty() && bytes_[id] == content) return id;
  }
  return std::nullopt;
}

// --- FakeBackend ---

FakeBackend::FakeBackend(const Options& options)
    : options_(options),
      cells_(static_cast<size_t>(options.num_blocks) * options.block_size),
      slots_(options.num_slots) {
  layout_.block_size = options.block_size;
}

FakeBackend::Cell& FakeBackend::CellOf(const StepPlan& plan, const PlanSequence& seq,
                                       int32_t position) {
  const int32_t block = plan.block_ids[seq.table_begin + position / options_.block_size];
  return cells_[static_cast<int64_t>(block) * options_.block_size + position % options_.block_size];
}

absl::Status FakeBackend::CheckPlan(const StepPlan& plan) const {
  if (plan.step_id != next_step_) {
    return absl::InternalError(absl::StrCat("step ", plan.step_id, ", expected ", next_step_));
  }
  int32_t next_row = 0;
  std::set<std::pair<int32_t, int32_t>> written;  // block, offset
  std::set<int64_t> ids;
  for (const PlanSequence& seq : plan.sequences) {
    if (seq.first_row != next_row || seq.num_rows <= 0) return absl::InternalError("rows");
    next_row += seq.num_rows;
    if (!ids.insert(seq.sequence_id).second) return absl::InternalError("a sequence twice");
    const int32_t end = seq.first_position + seq.num_rows;
    if (seq.table_size != (end + options_.block_size - 1) / options_.block_size) {
      return absl::InternalError(absl::StrCat("table of ", seq.table_size, " for ", end));
    }
    std::set<int32_t> table;
    for (int32_t i = 0; i < seq.table_size; ++i) {
      const int32_t id = plan.block_ids[seq.table_begin + i];
      if (id < 0 || id >= options_.num_blocks || !table.insert(id).second) {
        return absl::InternalError(absl::StrCat("block ", id, " in a table"));
      }
    }
    for (int32_t p = seq.first_position; p < end; ++p) {
      const int32_t id = plan.block_ids[seq.table_begin + p / options_.block_size];
      if (!written.insert({id, p % options_.block_size}).second) {
        return absl::InternalError(absl::StrCat("block ", id, " written twice at ", p));
      }
    }
  }
  if (next_row != plan.num_rows()) return absl::InternalError("rows without a sequence");
  std::set<int32_t> from, to;
  for (const BlockCopy& copy : plan.copies) {
    from.insert(copy.from);
    if (!to.insert(copy.to).second) return absl::InternalError("copied to twice");
  }
  for (const int32_t id : to) {
    if (from.contains(id)) return absl::InternalError("copies depend on their order");
  }
  return absl::OkStatus();
}

// Positions [0, end) must be a chain of hashes.
absl::Status FakeBackend::ReadPrefix(const StepPlan& plan, const PlanSequence& seq, int32_t end) {
  uint64_t hash = kEmpty;
  for (int32_t p = 0; p < end; ++p) {
    const Cell& cell = CellOf(plan, seq, p);
    if (cell.position != p || cell.hash != Append(hash, cell.token)) {
      return absl::InternalError(absl::StrCat("step ", plan.step_id, " sequence ", seq.sequence_id,
                                              " reads a wrong position ", p, " of ", end,
                                              ", found ", cell.position));
    }
    hash = cell.hash;
  }
  return absl::OkStatus();
}

absl::Status FakeBackend::Launch(const StepPlan& plan) {
  if (std::exchange(fail_next_, false)) return absl::InternalError("the fake device fell off");
  RETURN_IF_ERROR(CheckPlan(plan));
  ++next_step_;
  for (const int32_t slot : plan.detach_slots) {
    if (!slots_[slot].has_value()) return absl::InternalError("detach of a free slot");
    slots_[slot].reset();
  }
  for (const SlotAttach& attach : plan.attach_slots) {
    if (slots_[attach.slot].has_value()) return absl::InternalError("attach to a used slot");
    slots_[attach.slot] = Slot{attach, attach.output};
  }
  for (const BlockCopy& copy : plan.copies) {
    std::copy_n(cells_.begin() + static_cast<int64_t>(copy.from) * options_.block_size,
                options_.block_size,
                cells_.begin() + static_cast<int64_t>(copy.to) * options_.block_size);
    ++num_copies_;
  }
  // What was there before the step, then what the step writes.
  for (const PlanSequence& seq : plan.sequences) {
    RETURN_IF_ERROR(ReadPrefix(plan, seq, seq.first_position));
  }
  StepResult result;
  result.step_id = plan.step_id;
  std::vector<Cell> rows(plan.num_rows());
  for (const PlanSequence& seq : plan.sequences) {
    Cell before;
    before.hash = kEmpty;
    if (seq.first_position > 0) before = CellOf(plan, seq, seq.first_position - 1);
    for (int32_t i = 0; i < seq.num_rows; ++i) {
      const TokenSource& source = plan.tokens[seq.first_row + i];
      const int32_t token =
          source.token >= 0 ? source.token : last_.samples[source.sample_index].at(0).token;
      Cell& cell = CellOf(plan, seq, seq.first_position + i);
      cell = {seq.first_position + i, token, Append(before.hash, token),
              before.nan || token == kNanToken || token < 0};
      before = cell;
      rows[seq.first_row + i] = cell;
    }
    if (before.nan) result.non_finite_sequences.push_back(seq.sequence_id);
  }
  for (const PlanSequence& seq : plan.sequences) {
    RETURN_IF_ERROR(ReadPrefix(plan, seq, seq.first_position + seq.num_rows));
  }
  for (const PlanSample& sample : plan.samples) {
    if (!slots_[sample.slot].has_value()) return absl::InternalError("sample with a free slot");
    Slot& slot = *slots_[sample.slot];
    const Cell& row = rows[sample.row];
    if (sample.output_index != static_cast<int32_t>(slot.history.size())) {
      return absl::InternalError(absl::StrCat("sample ", sample.output_index, " after ",
                                              slot.history.size(), " recorded tokens"));
    }
    if (row.nan) {
      slot.history.push_back(-1);  // a plan made ahead goes on from it
      result.samples.push_back({SampledToken{}});
      continue;
    }
    const int32_t token = PickToken(row.hash, *slot.attach.params, slot.attach.choice_index,
                                    slot.history, slot.attach.stop_ids);
    slot.history.push_back(token);
    result.samples.push_back(
        {Score(row.hash, token, std::max(slot.attach.params->num_logprobs, 0))});
  }
  for (const PlanScore& score : plan.scores) {
    const Cell& row = rows[score.row];
    result.scores.push_back(row.nan ? SampledToken{} : Score(row.hash, score.token, score.num_top));
  }
  result.model_seconds = plan.num_rows() * options_.seconds_per_row;
  num_rows_ += plan.num_rows();
  last_ = result;
  results_.push_back(std::move(result));
  return absl::OkStatus();
}

absl::StatusOr<StepResult> FakeBackend::Finish() {
  if (results_.empty()) return absl::InternalError("no step was launched");
  StepResult result = std::move(results_.front());
  results_.pop_front();
  return result;
}

// --- Simulate ---

Simulated Simulate(const EngineRequest& request, const std::vector<int32_t>& eos_ids,
                   const Tokenizer* tokenizer, int32_t choice) {
  const SamplingParams& params = *request.sampling;
  Simulated want;
  std::vector<int32_t> ends = params.ignore_eos ? std::vector<int32_t>{} : eos_ids;
  const std::vector<int32_t> eos = ends;
  ends.insert(ends.end(), params.stop_token_ids.begin(), params.stop_token_ids.end());
  std::vector<std::pair<int32_t, std::string>> specials;
  for (const std::string& stop : params.stop) {
    if (tokenizer == nullptr) break;
    const auto id = tokenizer->FindToken(stop);
    if (id.has_value() && tokenizer->IsSpecial(*id)) {
      specials.emplace_back(*id, stop);
      ends.push_back(*id);
    }
  }

  uint64_t hash = kEmpty;
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (i > 0 && params.num_prompt_logprobs >= 0) {
      want.prompt_logprobs.push_back(Logprob(hash, request.prompt[i]));
    }
    hash = Append(hash, request.prompt[i]);
    want.not_finite |= request.prompt[i] == kNanToken;
  }
  std::vector<int32_t> outputs;
  size_t num_before = 0;  // bytes that are never searched for stops
  std::string bytes;      // of all outputs
  bool done = params.max_tokens == 0;
  while (!done && !want.not_finite) {
    const bool resumed = outputs.size() < request.resume.size();
    int32_t token;
    if (resumed) {
      token = request.resume[outputs.size()];
    } else {
      token = PickToken(hash, params, choice, outputs, ends);
      want.logprobs.push_back(Logprob(hash, token));
      want.token_ids.push_back(token);
    }
    const bool may_stop = static_cast<int32_t>(outputs.size()) >= params.min_tokens;
    outputs.push_back(token);
    hash = Append(hash, token);
    if (may_stop && std::find(ends.begin(), ends.end(), token) != ends.end()) {
      want.reason = FinishReason::kStop;
      if (std::find(eos.begin(), eos.end(), token) == eos.end()) {
        if (tokenizer != nullptr) want.stop_matched = std::string(tokenizer->TokenBytes(token));
        for (const auto& [id, text] : specials) {
          if (id == token) {
            want.stop_matched = text;
            break;
          }
        }
      }
      break;
    }
    done = static_cast<int32_t>(outputs.size()) >= params.max_tokens;
    if (tokenizer == nullptr) continue;
    const int32_t one[] = {token};
    bytes += tokenizer->DecodeBytes(one, true);
    if (!may_stop) num_before = bytes.size();
    // The stop that is complete first, byte by byte; the longest of those that end together.
    size_t best_end = std::string::npos, best_begin = 0;
    for (const std::string& stop : params.stop) {
      if (stop.empty()) continue;
      const size_t at = bytes.find(stop, num_before);
      if (at == std::string::npos) continue;
      const size_t end = at + stop.size();
      if (end < best_end || (end == best_end && at < best_begin)) {
        best_end = end;
        best_begin = at;
        want.stop_matched = stop;
      }
    }
    if (best_end != std::string::npos) {
      want.reason = FinishReason::kStop;
      bytes.resize(best_begin);
      break;
    }
  }
  for (size_t i = 0; i < bytes.size(); ++i) {
    const bool lone = (bytes[i] & 0x80) != 0 && bytes.compare(i, 2, "\xC3\xA9") != 0;
    if (lone) {
      want.text += "\xEF\xBF\xBD";  // U+FFFD
    } else {
      want.text += bytes[i];
      if ((bytes[i] & 0x80) != 0) want.text += bytes[++i];
    }
  }
  return want;
}

}  // namespace quire::test
