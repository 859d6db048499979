#include "worker/backend/cpu_backend.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/memory.h"
#include "common/status_macros.h"
#include "kernels/attention/paged_attention.h"
#include "kernels/common/exec_context.h"
#include "kernels/gemm/gemm.h"
#include "kernels/kv_write/kv_write.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "kernels/sample/logits.h"
#include "kernels/swiglu/swiglu.h"
#include "worker/model/rope_table.h"
#include "worker/sampling/sampler.h"

namespace quire {
namespace {

// Rows of logits computed at once: enough for the head's weights to be read once for a whole decode
// batch of that size, small enough that logits of a 150,000 word vocabulary stay under 20 MiB.
constexpr int32_t kHeadRows = 32;

// Embedding look-ups of fewer rows are not worth waking another thread.
constexpr int32_t kParallelRows = 16;

class StopWatch {
 public:
  explicit StopWatch(double* sum) : sum_(sum), start_(std::chrono::steady_clock::now()) {}
  ~StopWatch() {
    *sum_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  double* sum_;
  std::chrono::steady_clock::time_point start_;
};

int64_t AutoKvMemoryBytes(const KvLayout& layout, const CpuBackendOptions& options) {
  const int64_t blocks_a_sequence =
      (int64_t{options.max_model_len} + options.block_size - 1) / options.block_size;
  const int64_t useful = layout.page_bytes() * blocks_a_sequence * options.max_num_seqs;
  return std::min(AvailableMemoryBytes() / 4, useful);
}

class CpuBackendImpl final : public CpuBackend {
 public:
  CpuBackendImpl(std::shared_ptr<const Model> model, const CpuBackendOptions& options,
                 KvLayout layout, int32_t num_blocks, HugeBuffer pool, RopeTable rope)
      : model_(std::move(model)),
        config_(model_->config),
        options_(options),
        layout_(std::move(layout)),
        num_blocks_(num_blocks),
        kv_pool_(std::move(pool)),
        rope_(std::move(rope)),
        gemm_(PickImpl(GemmImpls(), options.isa)),
        attention_(PickImpl(PagedAttentionImpls(), options.isa)),
        kv_write_(PickImpl(KvWriteImpls(), options.isa)),
        rms_norm_(PickImpl(RmsNormImpls(), options.isa)),
        rope_kernel_(PickImpl(RopeImpls(), options.isa)),
        swiglu_(PickImpl(SwigluImpls(), options.isa)),
        logits_kernels_(GetLogitsKernels(options.isa)),
        thread_pool_(options.num_threads),
        slots_(options.max_num_seqs) {}

  absl::Status AllocateWorkspace();

  absl::Status Launch(const StepPlan& plan) override;

  absl::StatusOr<StepResult> Finish() override {
    if (results_.empty()) return absl::InternalError("Finish: no step was launched");
    StepResult result = std::move(results_.front());
    results_.pop_front();
    return result;
  }

  int32_t num_blocks() const override { return num_blocks_; }
  const KvLayout& kv_layout() const override { return layout_; }
  int32_t num_slots() const override { return options_.max_num_seqs; }
  int32_t vocab() const override { return config_.vocab; }
  std::string numerics() const override {
    return absl::StrCat("cpu-", IsaName(options_.isa), "-", model_->weights);
  }
  void set_logits_observer(LogitsObserver observer) override { observer_ = std::move(observer); }
  const StepProfile& profile() const override { return profile_; }
  int64_t kv_pool_bytes() const override { return kv_pool_.size_bytes(); }
  int64_t workspace_bytes() const override { return workspace_.size_bytes(); }

 private:
  // Activations, F32. Rows are those of the plan unless said otherwise.
  struct Buffers {
    float* x;                 // [rows, hidden] residual stream
    float* normed;            // [rows, hidden]
    float* qkv;               // [rows, q_width + 2 kv_width]
    float* attended;          // [rows, q_width]
    float* gate_up;           // [rows, 2 inner]
    float* inner;             // [rows, inner]
    float* logits;            // [kHeadRows, vocab]
    float* head_in;           // [kHeadRows, hidden]
    float* sampler;           // [threads, vocab] a sampler's own copy of a row that others want too
    int32_t* token_ids;       // [rows]
    int32_t* positions;       // [rows]
    int64_t* kv_slots;        // [rows]
    uint8_t* non_finite;      // [rows]
    int32_t* q_begin;         // [rows + 1]
    int32_t* first_position;  // [rows]
    int64_t* table_begin;     // [rows]
  };

  absl::Status CheckPlan(const StepPlan& plan) const;
  void ApplySlotsAndCopies(const StepPlan& plan);
  absl::Status LoadRows(const StepPlan& plan);
  absl::Status RunLayer(int32_t layer, const StepPlan& plan);
  absl::Status RunHead(const StepPlan& plan, StepResult* result);
  absl::Status ComputeLogits(const StepPlan& plan, std::span<const int32_t> rows);
  void NoteNonFinite(const StepPlan& plan, StepResult* result) const;

  template <class Args>
  absl::Status Run(const Impl<Args>& impl, const Args& args, double* seconds) {
    StopWatch watch(seconds);
    scratch_->Reset();
    ExecContext context{thread_pool_, *scratch_};
    return impl.run(args, context);
  }
  absl::Status Gemm(const float* x, const PackedMatrix& w, const float* bias, float* y, int64_t m,
                    bool accumulate, double* seconds) {
    GemmArgs args;
    args.x = x;
    args.x_stride = w.k;
    args.w = &w;
    args.bias = bias;
    args.y = y;
    args.y_stride = w.n;
    args.m = m;
    args.accumulate = accumulate;
    return Run(gemm_, args, seconds);
  }
  absl::Status Norm(const float* x, const std::vector<float>& weight, float* y, int64_t rows) {
    RmsNormArgs args;
    args.x = x;
    args.x_stride = config_.hidden;
    args.weight = weight.data();
    args.y = y;
    args.y_stride = config_.hidden;
    args.num_tokens = rows;
    args.hidden = config_.hidden;
    args.eps = config_.rms_eps;
    return Run(rms_norm_, args, &profile_.norm);
  }

  // Constant after creation.
  const std::shared_ptr<const Model> model_;
  const ModelConfig& config_;
  const CpuBackendOptions options_;
  const KvLayout layout_;
  const int32_t num_blocks_;
  const HugeBuffer kv_pool_;
  const RopeTable rope_;
  const Impl<GemmArgs>& gemm_;
  const Impl<PagedAttentionArgs>& attention_;
  const Impl<KvWriteArgs>& kv_write_;
  const Impl<RmsNormArgs>& rms_norm_;
  const Impl<RopeArgs>& rope_kernel_;
  const Impl<SwigluArgs>& swiglu_;
  const LogitsKernels& logits_kernels_;

  // Owned by the engine thread.
  ThreadPool thread_pool_;
  HugeBuffer workspace_;
  std::optional<ScratchArena> scratch_;
  Buffers b_{};
  std::vector<std::optional<SamplerSlot>> slots_;
  std::vector<int32_t> last_sampled_;  // of the last plan, by sample: what TokenSource refers to
  int64_t last_step_id_ = -1;
  std::deque<StepResult> results_;
  LogitsObserver observer_;
  StepProfile profile_;
};

absl::Status CpuBackendImpl::AllocateWorkspace() {
  const int64_t rows = options_.max_num_batched_tokens;
  const int64_t qkv_width = config_.q_width() + 2 * config_.kv_width();
  const int threads = options_.num_threads;

  int64_t scratch_bytes = PagedAttentionScratchBytes(layout_, config_.num_q_heads, rows,
                                                     options_.max_model_len, threads);
  auto gemm_needs = [&](const PackedMatrix& w, int64_t max_m) {
    scratch_bytes =
        std::max(scratch_bytes, GemmScratchBytes(w.form, options_.isa, max_m, w.n, w.k, threads));
  };
  for (const LayerWeights& layer : model_->layers) {
    for (const PackedMatrix* w : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      gemm_needs(*w, rows);
    }
  }
  gemm_needs(model_->head, kHeadRows);

  std::byte* scratch = nullptr;
  // Called twice: without memory to count the bytes, then to hand them out.
  auto lay_out = [&](std::byte* memory) {
    int64_t used = 0;
    auto take = [&](auto*& pointer, int64_t count) {
      using T = std::remove_reference_t<decltype(*pointer)>;
      if (memory != nullptr) pointer = reinterpret_cast<T*>(memory + used);
      used = (used + count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    };
    take(b_.x, rows * config_.hidden);
    take(b_.normed, rows * config_.hidden);
    take(b_.qkv, rows * qkv_width);
    take(b_.attended, rows * config_.q_width());
    take(b_.gate_up, rows * 2 * config_.inner);
    take(b_.inner, rows * config_.inner);
    take(b_.logits, int64_t{kHeadRows} * config_.vocab);
    take(b_.head_in, int64_t{kHeadRows} * config_.hidden);
    take(b_.sampler, int64_t{threads} * config_.vocab);
    take(b_.token_ids, rows);
    take(b_.positions, rows);
    take(b_.kv_slots, rows);
    take(b_.non_finite, rows);
    take(b_.q_begin, rows + 1);
    take(b_.first_position, rows);
    take(b_.table_begin, rows);
    take(scratch, scratch_bytes);
    return used;
  };
  ASSIGN_OR_RETURN(workspace_, HugeBuffer::Allocate(lay_out(nullptr), "activations"));
  lay_out(workspace_.data());
  scratch_.emplace(std::span<std::byte>(scratch, scratch_bytes));
  return absl::OkStatus();
}

// A broken plan is a bug of the engine core; it is reported instead of read out of bounds.
absl::Status CpuBackendImpl::CheckPlan(const StepPlan& plan) const {
  auto broken = [&](const std::string& what) {
    return absl::InternalError(absl::StrCat("step ", plan.step_id, ": ", what));
  };
  if (plan.num_rows() > options_.max_num_batched_tokens) {
    return broken(absl::StrCat(plan.num_rows(), " rows, max_num_batched_tokens is ",
                               options_.max_num_batched_tokens));
  }
  int32_t next_row = 0;
  for (const PlanSequence& s : plan.sequences) {
    if (s.first_row != next_row || s.num_rows <= 0) return broken("rows of sequences have gaps");
    next_row += s.num_rows;
    const int64_t end = int64_t{s.first_position} + s.num_rows;
    if (s.first_position < 0 || end > options_.max_model_len) {
      return broken(
          absl::StrCat("position ", end - 1, ", max_model_len is ", options_.max_model_len));
    }
    if (int64_t{s.table_size} * options_.block_size < end || s.table_begin < 0 ||
        s.table_begin + s.table_size > static_cast<int64_t>(plan.block_ids.size())) {
      return broken(absl::StrCat("block table of sequence ", s.sequence_id, " is too short"));
    }
  }
  if (next_row != plan.num_rows()) return broken("rows that belong to no sequence");
  for (const int32_t id : plan.block_ids) {
    if (id < 0 || id >= num_blocks_) return broken(absl::StrCat("block id ", id));
  }
  for (const BlockCopy& copy : plan.copies) {
    if (std::min(copy.from, copy.to) < 0 || std::max(copy.from, copy.to) >= num_blocks_) {
      return broken(absl::StrCat("copy of block ", copy.from, " to ", copy.to));
    }
  }
  for (const PlanSample& s : plan.samples) {
    if (s.row < 0 || s.num_drafts < 0 || s.num_drafts >= kHeadRows ||
        s.row + s.num_drafts >= plan.num_rows() || s.slot < 0 || s.slot >= num_slots()) {
      return broken(absl::StrCat("sample of row ", s.row, " in slot ", s.slot));
    }
  }
  for (const PlanScore& s : plan.scores) {
    if (s.row < 0 || s.row >= plan.num_rows() || s.token < 0 || s.token >= config_.vocab) {
      return broken(absl::StrCat("score of token ", s.token, " at row ", s.row));
    }
  }
  return absl::OkStatus();
}

void CpuBackendImpl::ApplySlotsAndCopies(const StepPlan& plan) {
  for (const int32_t slot : plan.detach_slots) slots_[slot].reset();
  for (const SlotAttach& attach : plan.attach_slots) {
    std::span<const int32_t> prompt;
    if (attach.prompt != nullptr) prompt = *attach.prompt;
    SamplerSlot& slot = slots_[attach.slot].emplace(attach.params, attach.choice_index,
                                                    attach.stop_ids, prompt, config_.vocab);
    for (const int32_t token : attach.output) slot.Record(token);
  }
  const int64_t page = layout_.page_bytes();
  for (const BlockCopy& copy : plan.copies) {
    std::memcpy(kv_pool_.data() + copy.to * page, kv_pool_.data() + copy.from * page, page);
  }
}

// Tokens, positions, KV slots and embeddings of all rows.
absl::Status CpuBackendImpl::LoadRows(const StepPlan& plan) {
  StopWatch watch(&profile_.embed);
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const PlanSequence& s = plan.sequences[i];
    b_.q_begin[i] = s.first_row;
    b_.first_position[i] = s.first_position;
    b_.table_begin[i] = s.table_begin;
    for (int32_t r = 0; r < s.num_rows; ++r) {
      const int32_t position = s.first_position + r;
      const int32_t block_id = plan.block_ids[s.table_begin + position / options_.block_size];
      b_.positions[s.first_row + r] = position;
      b_.kv_slots[s.first_row + r] =
          int64_t{block_id} * options_.block_size + position % options_.block_size;
    }
  }
  b_.q_begin[plan.sequences.size()] = plan.num_rows();
  std::memset(b_.non_finite, 0, plan.num_rows());

  for (int32_t row = 0; row < plan.num_rows(); ++row) {
    int32_t token = plan.tokens[row].token;
    if (token < 0) {
      const int32_t index = plan.tokens[row].sample_index;
      if (plan.step_id != last_step_id_ + 1 || index < 0 ||
          index >= static_cast<int32_t>(last_sampled_.size())) {
        return absl::InternalError(absl::StrCat("step ", plan.step_id, ": row ", row,
                                                " refers to sample ", index, " of step ",
                                                plan.step_id - 1, ", which is not the last one"));
      }
      // A sample that failed ends its sequence; this row is computed and dropped.
      token = std::max(last_sampled_[index], 0);
    }
    if (token >= config_.vocab) {
      return absl::InternalError(absl::StrCat("step ", plan.step_id, ": token ", token,
                                              ", the vocabulary has ", config_.vocab));
    }
    b_.token_ids[row] = token;
  }
  auto embed = [&](int64_t row, int) {
    DequantizeRow(model_->embedding, b_.token_ids[row], b_.x + row * config_.hidden);
  };
  if (plan.num_rows() < kParallelRows) {
    for (int32_t row = 0; row < plan.num_rows(); ++row) embed(row, 0);
  } else {
    thread_pool_.ParallelFor(plan.num_rows(), embed);
  }
  return absl::OkStatus();
}

absl::Status CpuBackendImpl::RunLayer(int32_t layer, const StepPlan& plan) {
  const LayerWeights& w = model_->layers[layer];
  const int64_t rows = plan.num_rows();
  const int64_t qkv_width = config_.q_width() + 2 * config_.kv_width();
  float* q = b_.qkv;
  float* k = q + config_.q_width();
  float* v = k + config_.kv_width();

  RETURN_IF_ERROR(Norm(b_.x, w.input_norm, b_.normed, rows));
  RETURN_IF_ERROR(Gemm(b_.normed, w.qkv, w.qkv_bias.empty() ? nullptr : w.qkv_bias.data(), b_.qkv,
                       rows, /*accumulate=*/false, &profile_.qkv));

  RopeArgs rope;
  rope.x_stride = qkv_width;
  rope.num_tokens = rows;
  rope.head_size = config_.head_size;
  rope.positions = b_.positions;
  rope.cos = rope_.cos();
  rope.sin = rope_.sin();
  rope.max_position = rope_.max_positions();
  rope.norm_eps = config_.rms_eps;
  rope.x = q;
  rope.num_heads = config_.num_q_heads;
  rope.norm_weight = w.q_norm.empty() ? nullptr : w.q_norm.data();
  RETURN_IF_ERROR(Run(rope_kernel_, rope, &profile_.rope));
  rope.x = k;
  rope.num_heads = config_.num_kv_heads;
  rope.norm_weight = w.k_norm.empty() ? nullptr : w.k_norm.data();
  RETURN_IF_ERROR(Run(rope_kernel_, rope, &profile_.rope));

  const KvLayerView kv{kv_pool_.data() + layer * layout_.layer_bytes(), layout_.page_bytes()};
  KvWriteArgs write;
  write.k = k;
  write.k_stride = qkv_width;
  write.v = v;
  write.v_stride = qkv_width;
  write.kv = kv;
  write.layout = layout_;
  write.num_tokens = rows;
  write.slots = b_.kv_slots;
  write.non_finite = b_.non_finite;
  RETURN_IF_ERROR(Run(kv_write_, write, &profile_.kv_write));

  PagedAttentionArgs attention;
  attention.q = q;
  attention.q_stride = qkv_width;
  attention.out = b_.attended;
  attention.out_stride = config_.q_width();
  attention.kv = kv;
  attention.layout = layout_;
  attention.num_q_heads = config_.num_q_heads;
  attention.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_size));
  attention.num_seqs = static_cast<int32_t>(plan.sequences.size());
  attention.q_begin = b_.q_begin;
  attention.first_position = b_.first_position;
  attention.table_begin = b_.table_begin;
  attention.block_ids = plan.block_ids.data();
  RETURN_IF_ERROR(Run(attention_, attention, &profile_.attention));

  RETURN_IF_ERROR(Gemm(b_.attended, w.o, nullptr, b_.x, rows, /*accumulate=*/true, &profile_.o));
  RETURN_IF_ERROR(Norm(b_.x, w.post_attention_norm, b_.normed, rows));
  RETURN_IF_ERROR(Gemm(b_.normed, w.gate_up, nullptr, b_.gate_up, rows, false, &profile_.gate_up));
  SwigluArgs swiglu;
  swiglu.x = b_.gate_up;
  swiglu.x_stride = 2 * int64_t{config_.inner};
  swiglu.y = b_.inner;
  swiglu.y_stride = config_.inner;
  swiglu.num_tokens = rows;
  swiglu.inner = config_.inner;
  RETURN_IF_ERROR(Run(swiglu_, swiglu, &profile_.swiglu));
  return Gemm(b_.inner, w.down, nullptr, b_.x, rows, /*accumulate=*/true, &profile_.down);
}

// Logits of up to kHeadRows rows into b_.logits.
absl::Status CpuBackendImpl::ComputeLogits(const StepPlan& plan, std::span<const int32_t> rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(b_.head_in + i * config_.hidden, b_.x + int64_t{rows[i]} * config_.hidden,
                sizeof(float) * config_.hidden);
  }
  const auto count = static_cast<int64_t>(rows.size());
  RETURN_IF_ERROR(Norm(b_.head_in, model_->final_norm, b_.head_in, count));
  RETURN_IF_ERROR(Gemm(b_.head_in, model_->head, nullptr, b_.logits, count, false, &profile_.head));
  if (observer_) {
    for (size_t i = 0; i < rows.size(); ++i) {
      observer_(plan, rows[i], {b_.logits + i * config_.vocab, static_cast<size_t>(config_.vocab)});
    }
  }
  return absl::OkStatus();
}

// Takes samples and scores in groups whose rows fit one pass over the head.
absl::Status CpuBackendImpl::RunHead(const StepPlan& plan, StepResult* result) {
  result->samples.resize(plan.samples.size());
  result->scores.resize(plan.scores.size());
  last_sampled_.assign(plan.samples.size(), 0);
  const int64_t vocab = config_.vocab;

  std::vector<int32_t> rows;  // of this pass, each once
  auto index_of = [&](int32_t row) {
    return std::find(rows.begin(), rows.end(), row) - rows.begin();
  };
  size_t begin = 0;
  while (begin < plan.samples.size()) {
    rows.clear();
    size_t end = begin;
    for (; end < plan.samples.size(); ++end) {
      const PlanSample& s = plan.samples[end];
      const size_t before = rows.size();
      for (int32_t r = s.row; r <= s.row + s.num_drafts; ++r) {
        if (index_of(r) == static_cast<int64_t>(rows.size())) rows.push_back(r);
      }
      if (rows.size() > kHeadRows) {
        rows.resize(before);
        break;
      }
    }
    RETURN_IF_ERROR(ComputeLogits(plan, rows));
    StopWatch watch(&profile_.sample);
    thread_pool_.ParallelFor(static_cast<int64_t>(end - begin), [&](int64_t i, int thread) {
      const PlanSample& s = plan.samples[begin + i];
      std::vector<SampledToken>& out = result->samples[begin + i];
      SamplerSlot& slot = *slots_[s.slot];
      float* scratch = b_.sampler + thread * vocab;
      for (int32_t d = 0; d <= s.num_drafts; ++d) {
        // The sampler spoils its row, and with n > 1 several samplers want the same one.
        std::memcpy(scratch, b_.logits + index_of(s.row + d) * vocab, sizeof(float) * vocab);
        out.push_back(slot.Sample(scratch, vocab, s.output_index + d, logits_kernels_));
        const int32_t token = out.back().token;
        last_sampled_[begin + i] = token;
        if (token < 0) break;
        slot.Record(token);
        if (d == s.num_drafts || plan.tokens[s.row + d + 1].token != token) break;
      }
    });
    begin = end;
  }

  begin = 0;
  while (begin < plan.scores.size()) {
    const size_t end = std::min(plan.scores.size(), begin + kHeadRows);
    rows.clear();
    for (size_t i = begin; i < end; ++i) rows.push_back(plan.scores[i].row);
    RETURN_IF_ERROR(ComputeLogits(plan, rows));
    StopWatch watch(&profile_.sample);
    thread_pool_.ParallelFor(static_cast<int64_t>(end - begin), [&](int64_t i, int) {
      const PlanScore& s = plan.scores[begin + i];
      result->scores[begin + i] =
          ScoreToken(b_.logits + i * vocab, vocab, s.token, s.num_top, logits_kernels_);
    });
    begin = end;
  }
  return absl::OkStatus();
}

void CpuBackendImpl::NoteNonFinite(const StepPlan& plan, StepResult* result) const {
  for (const PlanSequence& s : plan.sequences) {
    const uint8_t* first = b_.non_finite + s.first_row;
    if (std::find(first, first + s.num_rows, 1) != first + s.num_rows) {
      result->non_finite_sequences.push_back(s.sequence_id);
    }
  }
}

absl::Status CpuBackendImpl::Launch(const StepPlan& plan) {
  RETURN_IF_ERROR(CheckPlan(plan));
  StepResult result;
  result.step_id = plan.step_id;
  {
    StopWatch watch(&result.model_seconds);
    ApplySlotsAndCopies(plan);
    for (const PlanSample& s : plan.samples) {
      if (!slots_[s.slot].has_value()) {
        return absl::InternalError(
            absl::StrCat("step ", plan.step_id, ": sampler slot ", s.slot, " is not attached"));
      }
    }
    if (plan.num_rows() > 0) {
      RETURN_IF_ERROR(LoadRows(plan));
      for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
        RETURN_IF_ERROR(RunLayer(layer, plan));
      }
      NoteNonFinite(plan, &result);
    }
    RETURN_IF_ERROR(RunHead(plan, &result));
  }
  last_step_id_ = plan.step_id;
  results_.push_back(std::move(result));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuBackend>> CreateCpuBackend(std::shared_ptr<const Model> model,
                                                             const CpuBackendOptions& options) {
  const ModelConfig& config = model->config;
  struct Positive {
    const char* name;
    int64_t value;
  };
  for (const Positive& p :
       {Positive{"threads", options.num_threads}, Positive{"max_num_seqs", options.max_num_seqs},
        Positive{"max_num_batched_tokens", options.max_num_batched_tokens},
        Positive{"max_model_len", options.max_model_len}}) {
    if (p.value < 1) {
      return absl::InvalidArgumentError(absl::StrCat(p.name, " is ", p.value, ", the least is 1"));
    }
  }
  KvLayout layout;
  layout.dtype = options.kv_dtype;
  layout.block_size = options.block_size;
  layout.num_layers = config.num_layers;
  layout.num_kv_heads = config.num_kv_heads;
  layout.head_size = config.head_size;
  RETURN_IF_ERROR(layout.Validate());

  const int64_t memory =
      options.kv_memory_bytes > 0 ? options.kv_memory_bytes : AutoKvMemoryBytes(layout, options);
  const int64_t num_blocks = std::min<int64_t>(memory / layout.page_bytes(), INT32_MAX / 64);
  if (num_blocks < 1) {
    return absl::InvalidArgumentError(absl::StrCat("kv_cache_memory is ", memory,
                                                   " bytes, one block of ", options.block_size,
                                                   " tokens needs ", layout.page_bytes()));
  }
  ASSIGN_OR_RETURN(HugeBuffer pool,
                   HugeBuffer::Allocate(num_blocks * layout.page_bytes(), "kv_cache_memory"));
  ASSIGN_OR_RETURN(RopeTable rope, RopeTable::Create(config, options.max_model_len));
  auto backend = std::make_unique<CpuBackendImpl>(std::move(model), options, layout,
                                                  static_cast<int32_t>(num_blocks), std::move(pool),
                                                  std::move(rope));
  RETURN_IF_ERROR(backend->AllocateWorkspace());
  return backend;
}

}  // namespace quire
