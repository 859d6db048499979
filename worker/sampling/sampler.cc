#include "worker/sampling/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "common/status_macros.h"
#include "worker/sampling/philox.h"

namespace quire {
namespace {

// Below this softmax(x / T) is the maximum for every gap that F32 logits show (and 1 / T stays far
// from overflow): taken as greedy.
constexpr float kGreedyTemperature = 1e-6f;
// Up to here the heap of top_k beats a selection over a copy of the row.
constexpr int64_t kMaxHeapTopK = 1024;
// How many of the best are tried for top_p and min_p without top_k before the whole row is cut: a
// peaked row needs few.
constexpr int64_t kNucleusGuesses[] = {32, 256};

constexpr float kMaxLogit = std::numeric_limits<float>::max();

float Clamp(float x) { return std::min(std::max(x, -kMaxLogit), kMaxLogit); }

struct Candidate {
  int32_t token;
  float weight;  // exp((x - max) / T), 1 for the best
};

// Descending weight, then ascending token.
bool Better(const Candidate& a, const Candidate& b) {
  return a.weight > b.weight || (a.weight == b.weight && a.token < b.token);
}

// How many of `sorted` (all that may hold the answer) top_p and min_p leave: the shortest run whose
// weight reaches top_p of `total`, without those under min_p; at least one. Sets *complete to
// whether the run ended inside of the list.
int64_t KeepCount(const std::vector<Candidate>& sorted, double total, float top_p, float min_p,
                  bool* complete) {
  *complete = true;
  double sum = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (i > 0 && sorted[i].weight < min_p) return static_cast<int64_t>(i);
    sum += sorted[i].weight;
    if (top_p < 1 && sum >= top_p * total) return static_cast<int64_t>(i) + 1;
  }
  *complete = false;
  return static_cast<int64_t>(sorted.size());
}

bool LowerToken(const Candidate& a, const Candidate& b) { return a.token < b.token; }

// Draws by weight from candidates in token order, so that cutting more or less of the tail moves
// few draws.
int32_t DrawCandidate(const std::vector<Candidate>& kept, double uniform) {
  double total = 0;
  for (const Candidate& c : kept) total += c.weight;
  const double target = uniform * total;
  double sum = 0;
  for (const Candidate& c : kept) {
    sum += c.weight;
    if (sum > target) return c.token;
  }
  return kept.back().token;  // not reached: total is this sum, and uniform is below 1
}

// A row of logits, or of weights once ToWeights was called.
struct Row {
  float* x;
  int64_t vocab;
  float max;
  float inverse_temperature;
  const LogitsKernels& kernels;
  bool weighted = false;
  std::vector<double> block_sums;
  double total = 0;

  void ToWeights() {
    block_sums.resize(static_cast<size_t>((vocab + kLogitsBlock - 1) / kLogitsBlock));
    kernels.exp_weights(x, vocab, max, inverse_temperature, block_sums.data());
    total = std::accumulate(block_sums.begin(), block_sums.end(), 0.0);
    weighted = true;
  }
};

// The k largest of the row as candidates, best first. k <= vocab.
std::vector<Candidate> TopK(const Row& row, int64_t k) {
  const float* logits = row.x;
  const int64_t vocab = row.vocab;
  std::vector<int32_t> tokens(static_cast<size_t>(k));
  std::vector<float> values(static_cast<size_t>(k));
  if (k <= kMaxHeapTopK) {
    k = row.kernels.top_k(logits, vocab, k, tokens.data(), values.data());
  } else {
    std::vector<int32_t> order(static_cast<size_t>(vocab));
    std::iota(order.begin(), order.end(), 0);
    const auto better = [logits](int32_t a, int32_t b) {
      return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
    };
    std::nth_element(order.begin(), order.begin() + k, order.end(), better);
    std::sort(order.begin(), order.begin() + k, better);
    for (int64_t i = 0; i < k; ++i) {
      tokens[i] = order[i];
      values[i] = logits[order[i]];
    }
  }
  if (!row.weighted) {  // an element's weight has the same bits here as in a whole row
    std::vector<double> sums(static_cast<size_t>((k + kLogitsBlock - 1) / kLogitsBlock));
    row.kernels.exp_weights(values.data(), k, row.max, row.inverse_temperature, sums.data());
  }
  std::vector<Candidate> candidates(static_cast<size_t>(k));
  for (int64_t i = 0; i < k; ++i) candidates[i] = {tokens[i], values[i]};
  return candidates;
}

// Draws from all of `weights` by walking block sums, then one block.
int32_t DrawFromAll(const float* weights, int64_t vocab, const std::vector<double>& block_sums,
                    double total, double uniform) {
  const double target = uniform * total;
  double sum = 0;
  size_t block = 0;
  while (block + 1 < block_sums.size() && sum + block_sums[block] <= target) {
    sum += block_sums[block++];
  }
  const int64_t begin = static_cast<int64_t>(block) * kLogitsBlock;
  const int64_t end = std::min(vocab, begin + kLogitsBlock);
  int64_t last = -1;
  for (int64_t i = begin; i < end; ++i) {
    if (weights[i] <= 0) continue;
    sum += weights[i];
    last = i;
    if (sum > target) return static_cast<int32_t>(i);
  }
  // The block's sum in F32 may exceed the walk's by a rounding error: the last that has weight. If
  // the block has none (then target lies on the end of all weight), the last before it.
  for (int64_t i = begin; last < 0 && i-- > 0;) {
    if (weights[i] > 0) last = i;
  }
  return static_cast<int32_t>(last);
}

// What top_p and min_p leave of a whole row of weights, without sorting the row: sums a bucket of
// equal leading bits of the weight (which order as the weights do), then sorts only the bucket in
// which top_p of the total is reached. In token order.
std::vector<Candidate> Nucleus(const float* weights, int64_t vocab, double total, float top_p,
                               float min_p) {
  constexpr int kShift = 18;  // 8 exponent and 5 fraction bits: 32 buckets an octave
  constexpr uint32_t kBuckets = (0x3f800000u >> kShift) + 1;  // weights are at most 1
  const auto bucket_of = [](float weight) {
    return std::min(std::bit_cast<uint32_t>(weight) >> kShift, kBuckets - 1);
  };
  uint32_t cut = 0;
  double above = 0;  // the weight in buckets above `cut`
  if (top_p < 1) {
    std::vector<double> sums(kBuckets);
    for (int64_t i = 0; i < vocab; ++i) sums[bucket_of(weights[i])] += weights[i];
    for (cut = kBuckets - 1; cut > 0 && above + sums[cut] < top_p * total; --cut) {
      above += sums[cut];
    }
  }
  std::vector<Candidate> kept, border;
  for (int64_t i = 0; i < vocab; ++i) {
    if (weights[i] < min_p || weights[i] <= 0) continue;
    const uint32_t bucket = bucket_of(weights[i]);
    if (bucket < cut) continue;
    const Candidate candidate{static_cast<int32_t>(i), weights[i]};
    (top_p < 1 && bucket == cut ? border : kept).push_back(candidate);
  }
  std::sort(border.begin(), border.end(), Better);
  size_t take = 0;
  while (take < border.size() && ((take == 0 && kept.empty()) || above < top_p * total)) {
    above += border[take++].weight;
  }
  border.resize(take);
  std::sort(border.begin(), border.end(), LowerToken);
  const auto middle = static_cast<std::ptrdiff_t>(kept.size());
  kept.insert(kept.end(), border.begin(), border.end());
  std::inplace_merge(kept.begin(), kept.begin() + middle, kept.end(), LowerToken);
  return kept;
}

void FillTop(const float* logits, int64_t vocab, int32_t num_top, double log_sum,
             const LogitsKernels& kernels, SampledToken* result) {
  if (num_top <= 0) return;
  std::vector<int32_t> tokens(static_cast<size_t>(num_top));
  std::vector<float> values(static_cast<size_t>(num_top));
  const int64_t count = kernels.top_k(logits, vocab, num_top, tokens.data(), values.data());
  result->top.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    result->top.push_back({tokens[i], static_cast<float>(values[i] - log_sum)});
  }
}

// From adjusted logits, the best of which is `best`.
int32_t Draw(float* logits, int64_t vocab, int64_t best, const SamplingParams& params,
             double uniform, const LogitsKernels& kernels) {
  Row row{logits, vocab, logits[best], 1.0f / params.temperature, kernels, false, {}, 0};
  bool complete;
  if (params.top_k > 0 && params.top_k < vocab) {
    std::vector<Candidate> kept = TopK(row, params.top_k);
    double total = 0;
    for (const Candidate& c : kept) total += c.weight;
    kept.resize(static_cast<size_t>(KeepCount(kept, total, params.top_p, params.min_p, &complete)));
    std::sort(kept.begin(), kept.end(), LowerToken);
    return DrawCandidate(kept, uniform);
  }
  if (params.top_p < 1 || params.min_p <= 0) row.ToWeights();  // min_p alone needs no total
  if (params.top_p >= 1 && params.min_p <= 0) {
    return DrawFromAll(row.x, vocab, row.block_sums, row.total, uniform);
  }
  for (int64_t guess : kNucleusGuesses) {
    std::vector<Candidate> kept = TopK(row, std::min(vocab, guess));
    const int64_t count = KeepCount(kept, row.total, params.top_p, params.min_p, &complete);
    if (!complete && guess < vocab) continue;
    kept.resize(static_cast<size_t>(count));
    std::sort(kept.begin(), kept.end(), LowerToken);
    return DrawCandidate(kept, uniform);
  }
  if (!row.weighted) row.ToWeights();
  return DrawCandidate(Nucleus(row.x, vocab, row.total, params.top_p, params.min_p), uniform);
}

}  // namespace

double CounterUniform(uint64_t seed, uint32_t stream, uint64_t counter) {
  const std::array<uint32_t, 4> r =
      Philox4x32({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), stream, 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = static_cast<uint64_t>(r[1]) << 32 | r[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

SamplerSlot::SamplerSlot(std::shared_ptr<const SamplingParams> params, int32_t choice_index,
                         std::vector<int32_t> stop_ids, std::span<const int32_t> prompt,
                         int32_t vocab)
    : params_(std::move(params)),
      choice_index_(choice_index),
      stop_ids_(std::move(stop_ids)),
      penalised_(params_->repetition_penalty != 1 || params_->presence_penalty != 0 ||
                 params_->frequency_penalty != 0) {
  std::erase_if(stop_ids_, [vocab](int32_t id) { return id < 0 || id >= vocab; });
  if (params_->repetition_penalty == 1) return;
  seen_.assign((static_cast<size_t>(vocab) + 31) / 32, 0);
  for (int32_t token : prompt) {
    QUIRE_CHECK(token >= 0 && token < vocab);
    seen_[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
  }
}

void SamplerSlot::Record(int32_t token) {
  if (!penalised_) return;
  if (!seen_.empty()) seen_[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
  const auto at = std::lower_bound(output_counts_.begin(), output_counts_.end(),
                                   std::pair<int32_t, int32_t>(token, 0));
  if (at != output_counts_.end() && at->first == token) {
    ++at->second;
  } else {
    output_counts_.insert(at, {token, 1});
  }
}

void SamplerSlot::Adjust(float* logits, int64_t vocab, int64_t output_index) const {
  for (const auto& [token, bias] : params_->logit_bias) {
    logits[token] = Clamp(logits[token] + bias);
  }
  for (size_t word = 0; word < seen_.size(); ++word) {
    for (uint32_t bits = seen_[word]; bits != 0; bits &= bits - 1) {
      const int64_t token = static_cast<int64_t>(word) * 32 + std::countr_zero(bits);
      if (token >= vocab) break;
      float& x = logits[token];
      x = Clamp(x > 0 ? x / params_->repetition_penalty : x * params_->repetition_penalty);
    }
  }
  if (params_->presence_penalty != 0 || params_->frequency_penalty != 0) {
    for (const auto& [token, times] : output_counts_) {
      const float penalty =
          params_->presence_penalty + Clamp(params_->frequency_penalty * static_cast<float>(times));
      logits[token] = Clamp(logits[token] - penalty);
    }
  }
  if (output_index < params_->min_tokens) {
    for (int32_t id : stop_ids_) logits[id] = -std::numeric_limits<float>::infinity();
  }
}

SampledToken SamplerSlot::Sample(float* logits, int64_t vocab, int64_t output_index,
                                 const LogitsKernels& kernels) const {
  const SamplingParams& params = *params_;
  SampledToken result;
  int64_t best = kernels.argmax_finite(logits, vocab);
  if (best < 0) return result;

  const bool adjusts = penalised_ || !params.logit_bias.empty() ||
                       (output_index < params.min_tokens && !stop_ids_.empty());
  // top_p = 0 and top_k = 1 keep the best alone, whatever the random number.
  const bool greedy =
      params.temperature < kGreedyTemperature || params.top_p <= 0 || params.top_k == 1;
  double log_sum = 0;
  std::vector<float> raw;  // a copy only where the row is changed below
  if (wants_logprobs()) {
    log_sum = kernels.log_sum_exp(logits, vocab);
    FillTop(logits, vocab, params.num_logprobs, log_sum, kernels, &result);
    if (adjusts || !greedy) raw.assign(logits, logits + vocab);
  }
  if (adjusts) {
    Adjust(logits, vocab, output_index);
    best = kernels.argmax(logits, vocab);
  }
  // With every token banned there is nothing to weigh: the first.
  if (greedy || logits[best] == -std::numeric_limits<float>::infinity()) {
    result.token = static_cast<int32_t>(best);
  } else {
    result.token = Draw(logits, vocab, best, params,
                        CounterUniform(params.seed, static_cast<uint32_t>(choice_index_),
                                       static_cast<uint64_t>(output_index)),
                        kernels);
  }
  if (wants_logprobs()) {
    result.logprob =
        static_cast<float>((raw.empty() ? logits[result.token] : raw[result.token]) - log_sum);
  }
  return result;
}

SampledToken ScoreToken(const float* logits, int64_t vocab, int32_t token, int32_t num_top,
                        const LogitsKernels& kernels) {
  SampledToken result;
  if (!kernels.all_finite(logits, vocab)) return result;
  const double log_sum = kernels.log_sum_exp(logits, vocab);
  result.token = token;
  result.logprob = static_cast<float>(logits[token] - log_sum);
  FillTop(logits, vocab, num_top, log_sum, kernels, &result);
  return result;
}

}  // namespace quire
