#include "worker/model/weight_loader.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/common/thread_pool.h"
#include "worker/model/gguf_quants.h"
#include "worker/model/row_converter.h"
#include "worker/model/weight_forms.h"

namespace quire {
namespace {

constexpr int64_t kItemBytes = 1 << 20;  // packed bytes of one unit of parallel work, about
constexpr int64_t kItemRows = 128;       // units are multiples of this: panels and FP8 blocks
constexpr int64_t kAlignment = 64;       // of a packed matrix

// Names of the tensors of one layer, behind "model.layers.N." and "blk.N.".
struct LayerNames {
  const char *input_norm, *post_attention_norm, *q_norm, *k_norm, *q, *k, *v, *o, *gate, *up, *down;
};
constexpr LayerNames kHuggingFaceNames = {"input_layernorm",  "post_attention_layernorm",
                                          "self_attn.q_norm", "self_attn.k_norm",
                                          "self_attn.q_proj", "self_attn.k_proj",
                                          "self_attn.v_proj", "self_attn.o_proj",
                                          "mlp.gate_proj",    "mlp.up_proj",
                                          "mlp.down_proj"};
constexpr LayerNames kGgufNames = {"attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm",
                                   "attn_q",    "attn_k",   "attn_v",      "attn_output",
                                   "ffn_gate",  "ffn_up",   "ffn_down"};

struct GlobalNames {
  const char *embedding, *final_norm, *head;
};
constexpr GlobalNames kGlobalNames[] = {
    {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"},
    {"token_embd.weight", "output_norm.weight", "output.weight"},
};
const GlobalNames& Globals(CheckpointFormat format) {
  return kGlobalNames[format == CheckpointFormat::kGguf ? 1 : 0];
}

struct MatrixPlan {
  PackedMatrix* out = nullptr;
  std::vector<RowSource> parts;  // their rows follow one another
  int64_t offset = 0;            // in Model::memory
};

struct WorkItem {
  const MatrixPlan* matrix;
  int64_t row_begin, row_end;
};

// In pieces: what has been compared need not stay resident. Requires equal sizes.
bool SameBytes(const TensorFiles& files, const TensorInfo& a, const TensorInfo& b) {
  constexpr int64_t kPieceBytes = 4 << 20;
  for (int64_t begin = 0; begin < a.size_bytes(); begin += kPieceBytes) {
    const int64_t size = std::min(kPieceBytes, a.size_bytes() - begin);
    if (std::memcmp(files.Data(a) + begin, files.Data(b) + begin, size) != 0) return false;
    files.Release(a, begin, begin + size);
    files.Release(b, begin, begin + size);
  }
  return true;
}

class WeightLoader {
 public:
  WeightLoader(const TensorFiles& files, const WeightLoadOptions& options, Model* model)
      : files_(files), options_(options), model_(*model), config_(model->config) {}

  absl::Status Plan() {
    const GlobalNames& globals = Globals(options_.format);
    // Sized first: plans point into the vector.
    model_.layers.resize(config_.num_layers);
    RETURN_IF_ERROR(PlanEmbedding(globals));
    RETURN_IF_ERROR(LoadVector(globals.final_norm, config_.hidden, &model_.final_norm));
    for (int32_t i = 0; i < config_.num_layers; ++i) RETURN_IF_ERROR(PlanLayer(i));
    return CheckUnread();
  }

  absl::Status Allocate() {
    int64_t total = 0;
    for (MatrixPlan& plan : matrices_) {
      plan.offset = total;
      const PackedMatrix& m = *plan.out;
      const int64_t bytes = PackedBytes(m.form, m.isa, m.n, m.k);
      total += (bytes + kAlignment - 1) / kAlignment * kAlignment;
      const bool is_table = plan.out == &model_.embedding || plan.out == &model_.head;
      if (!is_table) form_bytes_[WeightsName(m.form)] += bytes;
    }
    const int64_t available = AvailableMemoryBytes();
    if (total > available) {
      return absl::ResourceExhaustedError(
          absl::StrCat(options_.config_origin, ": the weights need ", total, " bytes of memory, ",
                       available, " are available"));
    }
    ASSIGN_OR_RETURN(model_.memory, HugeBuffer::Allocate(total, "model weights"));
    for (MatrixPlan& plan : matrices_) plan.out->data = model_.memory.data() + plan.offset;
    if (config_.tied_embeddings) model_.head = model_.embedding;
    model_.packed_bytes = total;
    model_.weights = LargestShare(form_bytes_);
    model_.config.weights_dtype = LargestShare(type_bytes_);
    return absl::OkStatus();
  }

  absl::Status Pack(WeightLoadStats* stats);

 private:
  absl::Status Missing(const std::string& name) const {
    return absl::InvalidArgumentError(
        absl::StrCat(files_.files.empty() ? options_.config_origin : files_.files[0].path(),
                     ": tensor ", Quoted(name), " is missing, the architecture ",
                     ArchitectureName(config_.architecture), " needs it"));
  }
  absl::Status WrongShape(const TensorInfo& t, const std::vector<int64_t>& wanted,
                          const std::string& why) const {
    return absl::InvalidArgumentError(absl::StrCat(
        files_.Path(t), ": tensor ", Quoted(t.name), " has shape ", ShapeString(t.shape), ", ",
        options_.config_origin, " asks for ", ShapeString(wanted), " (", why, ")"));
  }

  // Appends `count` F32 values of the one-dimensional tensor `name`.
  absl::Status LoadVector(const std::string& name, int64_t count, std::vector<float>* out) {
    const TensorInfo* t = files_.Find(name);
    if (t == nullptr) return Missing(name);
    used_.insert(name);
    if (t->shape != std::vector<int64_t>{count}) return WrongShape(*t, {count}, "a vector");
    if (t->type.type == TensorType::kOther || IsQuantized(t->type.type) ||
        t->type.type == TensorType::kF8E4m3) {
      return absl::UnimplementedError(absl::StrCat(files_.Path(*t), ": tensor ", Quoted(name),
                                                   ": type ", t->type.name,
                                                   " is not supported for a vector"));
    }
    const size_t begin = out->size();
    out->resize(begin + count);
    DequantizeToF32(t->type.type, files_.Data(*t), count, out->data() + begin);
    return absl::OkStatus();
  }

  // The matrix `name` as a source of [rows, k], its shape checked.
  absl::StatusOr<RowSource> Source(const std::string& name, int64_t rows, int64_t k,
                                   const std::string& why) {
    const TensorInfo* t = files_.Find(name);
    if (t == nullptr) return Missing(name);
    used_.insert(name);
    if (t->shape != std::vector<int64_t>{rows, k}) return WrongShape(*t, {rows, k}, why);
    RowSource source{&files_, t, nullptr, 0};
    if (t->type.type != TensorType::kF8E4m3) return source;
    const std::string scale_name = absl::StrCat(name, "_scale_inv");
    source.scale = files_.Find(scale_name);
    if (source.scale == nullptr) return Missing(scale_name);
    used_.insert(scale_name);
    const std::vector<int64_t> blocks = {(rows + 127) / 128, (k + 127) / 128};
    if (source.scale->shape != blocks) return WrongShape(*source.scale, blocks, "blocks of 128");
    const TensorType type = source.scale->type.type;
    if (type != TensorType::kBf16 && type != TensorType::kF32 && type != TensorType::kF16) {
      return absl::UnimplementedError(
          absl::StrCat(files_.Path(*source.scale), ": tensor ", Quoted(scale_name), ": type ",
                       source.scale->type.name, " is not supported for block scales"));
    }
    return source;
  }

  // Plans `out` from `parts`, in the form that holds them all. Requires sources of equal k.
  absl::Status AddMatrix(std::vector<RowSource> parts, WeightForm form, PackedMatrix* out) {
    int64_t rows = 0;
    for (const RowSource& part : parts) {
      // Blocks of 128 rows have one scale: parts must start where a block starts.
      if (form == WeightForm::kFp8Block128 && rows % 128 != 0) {
        form = WeightForm::kBf16;
        model_.warnings.push_back(
            absl::StrCat("tensor ", Quoted(part.tensor->name), " starts at row ", rows,
                         " of a fused FP8 matrix, no multiple of 128: the matrix is held in bf16"));
      }
      rows += part.rows();
    }
    const int64_t k = parts[0].k();
    if (absl::Status status = ValidatePackedShape(form, rows, k); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat(files_.Path(*parts[0].tensor), ": tensor ",
                                                      Quoted(parts[0].tensor->name), ": ",
                                                      std::string(status.message())));
    }
    *out = PackedMatrix{form, options_.isa, rows, k, nullptr};
    matrices_.push_back(MatrixPlan{out, std::move(parts), 0});
    return absl::OkStatus();
  }

  absl::Status AddFused(std::vector<RowSource> parts, PackedMatrix* out) {
    WeightForm form = WeightForm::kF32;
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto wanted = FormForTensor(parts[i].tensor->type, options_.weights_dtype, false);
      if (!wanted.ok()) return InTensor(parts[i], wanted.status());
      form = i == 0 ? *wanted : CommonForm(form, *wanted);
      type_bytes_[FileTypeName(parts[i].tensor->type)] += parts[i].tensor->size_bytes();
    }
    return AddMatrix(std::move(parts), form, out);
  }

  absl::Status InTensor(const RowSource& source, const absl::Status& status) const {
    return absl::Status(status.code(), absl::StrCat(files_.Path(*source.tensor), ": tensor ",
                                                    Quoted(source.tensor->name), ": ",
                                                    std::string(status.message())));
  }

  absl::Status PlanEmbedding(const GlobalNames& globals) {
    const std::string why = absl::StrCat("vocabulary ", config_.vocab, ", hidden ", config_.hidden);
    ASSIGN_OR_RETURN(const RowSource embedding,
                     Source(globals.embedding, config_.vocab, config_.hidden, why));
    const TensorType type = embedding.tensor->type.type;
    auto form = FormForTensor(embedding.tensor->type, options_.weights_dtype, true);
    if (!form.ok()) return InTensor(embedding, form.status());
    if (config_.tied_embeddings) {
      if (files_.Find(globals.head) != nullptr) used_.insert(globals.head);  // equal: see Resolve
      return AddMatrix({embedding}, *form, &model_.embedding);
    }
    // A table that is only looked up costs memory, not bandwidth: no rounding beyond BF16.
    if (!IsQuantized(type) && *form != WeightForm::kF32) form = WeightForm::kBf16;
    RETURN_IF_ERROR(AddMatrix({embedding}, *form, &model_.embedding));
    ASSIGN_OR_RETURN(const RowSource head,
                     Source(globals.head, config_.vocab, config_.hidden, why));
    const auto head_form = FormForTensor(head.tensor->type, options_.weights_dtype, true);
    if (!head_form.ok()) return InTensor(head, head_form.status());
    return AddMatrix({head}, *head_form, &model_.head);
  }

  absl::Status PlanLayer(int32_t index) {
    const bool gguf = options_.format == CheckpointFormat::kGguf;
    const LayerNames& names = gguf ? kGgufNames : kHuggingFaceNames;
    const std::string prefix = absl::StrCat(gguf ? "blk." : "model.layers.", index, ".");
    const auto weight = [&](const char* stem) { return absl::StrCat(prefix, stem, ".weight"); };
    const int64_t hidden = config_.hidden, inner = config_.inner;
    const int64_t q_width = config_.q_width(), kv_width = config_.kv_width();
    LayerWeights& layer = model_.layers[index];

    RETURN_IF_ERROR(LoadVector(weight(names.input_norm), hidden, &layer.input_norm));
    RETURN_IF_ERROR(
        LoadVector(weight(names.post_attention_norm), hidden, &layer.post_attention_norm));
    if (config_.qk_norm) {
      RETURN_IF_ERROR(LoadVector(weight(names.q_norm), config_.head_size, &layer.q_norm));
      RETURN_IF_ERROR(LoadVector(weight(names.k_norm), config_.head_size, &layer.k_norm));
    }
    const std::string heads =
        absl::StrCat(config_.num_q_heads, " attention heads and ", config_.num_kv_heads,
                     " KV heads of head_dim ", config_.head_size, ", hidden ", hidden);
    ASSIGN_OR_RETURN(RowSource q, Source(weight(names.q), q_width, hidden, heads));
    ASSIGN_OR_RETURN(RowSource k, Source(weight(names.k), kv_width, hidden, heads));
    ASSIGN_OR_RETURN(const RowSource v, Source(weight(names.v), kv_width, hidden, heads));
    ASSIGN_OR_RETURN(const RowSource o, Source(weight(names.o), hidden, q_width, heads));
    if (gguf && config_.architecture == Architecture::kLlama) {
      q.interleaved_head_size = k.interleaved_head_size = config_.head_size;
    }
    RETURN_IF_ERROR(AddFused({q, k, v}, &layer.qkv));
    if (config_.qkv_bias) {
      const std::pair<const char*, int64_t> biases[] = {
          {names.q, q_width}, {names.k, kv_width}, {names.v, kv_width}};
      for (const auto& [stem, width] : biases) {
        RETURN_IF_ERROR(LoadVector(absl::StrCat(prefix, stem, ".bias"), width, &layer.qkv_bias));
      }
    }
    RETURN_IF_ERROR(AddFused({o}, &layer.o));
    const std::string widths = absl::StrCat("MLP width ", inner, ", hidden ", hidden);
    ASSIGN_OR_RETURN(const RowSource gate, Source(weight(names.gate), inner, hidden, widths));
    ASSIGN_OR_RETURN(const RowSource up, Source(weight(names.up), inner, hidden, widths));
    ASSIGN_OR_RETURN(const RowSource down, Source(weight(names.down), hidden, inner, widths));
    RETURN_IF_ERROR(AddFused({gate, up}, &layer.gate_up));
    return AddFused({down}, &layer.down);
  }

  // What is in the files and was not asked for: a bias would change the results, the rest is told.
  absl::Status CheckUnread() {
    int64_t count = 0;
    std::string first;
    for (const auto& [name, t] : files_.tensors) {
      if (used_.contains(name) || t.size_bytes() == 0 || name == "rope_freqs.weight" ||
          absl::EndsWith(name, "rotary_emb.inv_freq")) {
        continue;
      }
      if (absl::EndsWith(name, ".bias")) {
        return absl::UnimplementedError(
            absl::StrCat(files_.Path(t), ": tensor ", Quoted(name), ": the architecture ",
                         ArchitectureName(config_.architecture), " has no such bias here"));
      }
      if (count++ == 0) first = name;
    }
    if (count > 0) {
      model_.warnings.push_back(
          absl::StrCat(count, " tensors of the files are not used, the first is ", Quoted(first)));
    }
    return absl::OkStatus();
  }

  absl::Status PackItem(const WorkItem& item, RowConverter& converter) const;

  const TensorFiles& files_;
  const WeightLoadOptions& options_;
  Model& model_;
  const ModelConfig& config_;
  std::vector<MatrixPlan> matrices_;
  std::set<std::string> used_;
  std::map<std::string, int64_t> type_bytes_, form_bytes_;  // of the layers: file, memory
};

absl::Status WeightLoader::PackItem(const WorkItem& item, RowConverter& converter) const {
  const PackedMatrix& matrix = *item.matrix->out;
  const int64_t panel = PanelRows(matrix.isa);
  int64_t part_begin = 0;
  for (const RowSource& part : item.matrix->parts) {
    const int64_t part_end = part_begin + part.rows();
    const int64_t begin = std::max(item.row_begin, part_begin);
    const int64_t end = std::min(item.row_end, part_end);
    for (int64_t row = begin; row < end;) {
      const int64_t next = std::min(end, (row / panel + 1) * panel);
      WeightRows rows;
      RETURN_IF_ERROR(converter.Convert(part, row - part_begin, next - row, matrix.form, &rows));
      RETURN_IF_ERROR(PackRows(matrix, row, rows));
      row = next;
    }
    if (begin < end) {
      const int64_t row_bytes = part.tensor->size_bytes() / part.rows();
      files_.Release(*part.tensor, (begin - part_begin) * row_bytes,
                     (end - part_begin) * row_bytes);
    }
    part_begin = part_end;
  }
  return absl::OkStatus();
}

absl::Status WeightLoader::Pack(WeightLoadStats* stats) {
  std::vector<WorkItem> items;
  for (const MatrixPlan& plan : matrices_) {
    const PackedMatrix& m = *plan.out;
    const int64_t row_bytes = std::max<int64_t>(1, PackedBytes(m.form, m.isa, m.n, m.k) / m.n);
    const int64_t rows = std::max(kItemRows, kItemBytes / row_bytes / kItemRows * kItemRows);
    for (int64_t row = 0; row < m.n; row += rows) {
      items.push_back(WorkItem{&plan, row, std::min(m.n, row + rows)});
    }
  }

  ThreadPool pool(std::max(1, options_.num_threads));
  std::vector<RowConverter> converters(pool.num_threads());
  std::atomic<bool> failed = false;
  std::mutex mutex;  // guards what follows, and that progress is told by one thread at a time
  absl::Status first_error;
  int64_t done_bytes = 0;
  pool.ParallelFor(static_cast<int64_t>(items.size()), [&](int64_t i, int thread) {
    if (failed.load(std::memory_order_relaxed)) return;
    const absl::Status status = PackItem(items[i], converters[thread]);
    const PackedMatrix& m = *items[i].matrix->out;
    const std::lock_guard<std::mutex> lock(mutex);
    if (!status.ok()) {
      failed = true;
      if (first_error.ok()) first_error = status;
      return;
    }
    done_bytes += PackedBytes(m.form, m.isa, m.n, m.k) * (items[i].row_end - items[i].row_begin) /
                  std::max<int64_t>(1, m.n);
    if (options_.progress != nullptr) options_.progress(done_bytes, model_.packed_bytes);
  });
  if (stats != nullptr) {
    for (const RowConverter& converter : converters) {
      stats->staging_bytes += converter.staging_bytes();
    }
  }
  if (first_error.ok() && options_.progress != nullptr) {
    options_.progress(model_.packed_bytes, model_.packed_bytes);
  }
  return first_error;
}

}  // namespace

absl::Status ResolveTiedEmbeddings(const TensorFiles& files, CheckpointFormat format,
                                   const std::string& config_origin, Model* model) {
  const GlobalNames& names = Globals(format);
  const TensorInfo* head = files.Find(names.head);
  const TensorInfo* embedding = files.Find(names.embedding);
  if (!model->config.tied_embeddings && head == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(config_origin, ": tensor ", Quoted(names.head),
                     " is missing and tie_word_embeddings is not true, one of them is needed"));
  }
  if (!model->config.tied_embeddings || head == nullptr || embedding == nullptr) {
    return absl::OkStatus();
  }
  const bool equal = head->type.type == embedding->type.type && head->shape == embedding->shape &&
                     SameBytes(files, *head, *embedding);
  if (!equal) {
    model->config.tied_embeddings = false;
    model->warnings.push_back(
        absl::StrCat(config_origin, ": tie_word_embeddings is true, but the file holds a ",
                     Quoted(names.head), " that differs from the embedding: it is used"));
  }
  return absl::OkStatus();
}

absl::Status LoadWeights(const TensorFiles& files, const WeightLoadOptions& options, Model* model,
                         WeightLoadStats* stats) {
  WeightLoader loader(files, options, model);
  RETURN_IF_ERROR(loader.Plan());
  RETURN_IF_ERROR(loader.Allocate());
  return loader.Pack(stats);
}

}  // namespace quire
