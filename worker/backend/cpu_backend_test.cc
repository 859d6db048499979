// The forward pass against a plain decoder in double precision, on small random models held in
// memory. Parity with other software is tests/integration/parity_test.cc.
#include "worker/backend/cpu_backend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "common/fp.h"
#include "kernels/gemm/gemm.h"
#include "worker/model/model.h"

namespace quire {
namespace {

struct Shape {
  const char* name;
  Architecture architecture;
  int32_t num_q_heads, num_kv_heads, head_size;
  bool qk_norm, qkv_bias, tied;
};
constexpr Shape kShapes[] = {
    {"qwen3", Architecture::kQwen3, 4, 2, 32, true, false, true},
    {"qwen2", Architecture::kQwen2, 3, 1, 64, false, true, false},
    {"llama", Architecture::kLlama, 4, 4, 80, false, false, false},
};
constexpr int32_t kHidden = 96, kInner = 160, kVocab = 200, kLayers = 2;

class ModelMaker {
 public:
  ModelMaker(const Shape& shape, WeightForm form, Isa isa) : form_(form), isa_(isa) {
    model_ = std::make_shared<Model>();
    ModelConfig& c = model_->config;
    c.architecture = shape.architecture;
    c.name = shape.name;
    c.num_layers = kLayers;
    c.hidden = kHidden;
    c.inner = kInner;
    c.num_q_heads = shape.num_q_heads;
    c.num_kv_heads = shape.num_kv_heads;
    c.head_size = shape.head_size;
    c.vocab = kVocab;
    c.max_position = 512;
    c.tied_embeddings = shape.tied;
    c.qk_norm = shape.qk_norm;
    c.qkv_bias = shape.qkv_bias;
    model_->weights = WeightFormName(form);
    auto memory = HugeBuffer::Allocate(int64_t{8} << 20, "test weights");
    EXPECT_TRUE(memory.ok());
    model_->memory = std::move(*memory);
    model_->embedding = Matrix(kVocab, kHidden);
    model_->head = shape.tied ? model_->embedding : Matrix(kVocab, kHidden);
    model_->final_norm = Vector(kHidden, 1.0f);
    for (int i = 0; i < kLayers; ++i) {
      LayerWeights w;
      w.input_norm = Vector(kHidden, 1.0f);
      w.post_attention_norm = Vector(kHidden, 1.0f);
      if (shape.qk_norm) {
        w.q_norm = Vector(c.head_size, 1.0f);
        w.k_norm = Vector(c.head_size, 1.0f);
      }
      if (shape.qkv_bias) w.qkv_bias = Vector(c.q_width() + 2 * c.kv_width(), 0.0f);
      w.qkv = Matrix(c.q_width() + 2 * c.kv_width(), kHidden);
      w.o = Matrix(kHidden, c.q_width());
      w.gate_up = Matrix(2 * kInner, kHidden);
      w.down = Matrix(kHidden, kInner);
      model_->layers.push_back(std::move(w));
    }
  }
  std::shared_ptr<const Model> model() const { return model_; }

 private:
  float Uniform() { return static_cast<float>(rng_() % 20001) / 10000.0f - 1.0f; }
  std::vector<float> Vector(int64_t count, float center) {
    std::vector<float> v(count);
    for (float& x : v) x = center + 0.5f * Uniform();
    return v;
  }
  PackedMatrix Matrix(int64_t n, int64_t k) {
    PackedMatrix m{form_, isa_, n, k, model_->memory.data() + used_};
    used_ += (PackedBytes(form_, isa_, n, k) + 63) / 64 * 64;
    EXPECT_LE(used_, model_->memory.size_bytes());
    std::vector<float> values(n * k);
    for (float& x : values) x = 2.5f * Uniform() / std::sqrt(static_cast<float>(k));
    WeightRows rows{form_, n, k, values.data(), nullptr, nullptr};
    std::vector<uint16_t> bf16(n * k), scales16(n * k / 32), mins(n * k / 32);
    std::vector<int8_t> int8(n * k);
    std::vector<uint8_t> int4(n * k / 2);
    std::vector<float> scales(n);
    switch (form_) {
      case WeightForm::kBf16:
        for (int64_t i = 0; i < n * k; ++i) bf16[i] = F32ToBf16(values[i]);
        rows.values = bf16.data();
        break;
      case WeightForm::kInt8Channel:
        QuantizeRowsInt8Channel(values.data(), n, k, int8.data(), scales.data());
        rows.values = int8.data();
        rows.scales = scales.data();
        break;
      case WeightForm::kInt4Group32Min:
        QuantizeRowsInt4Group32Min(values.data(), n, k, int4.data(), scales16.data(), mins.data());
        rows.values = int4.data();
        rows.scales = scales16.data();
        rows.mins = mins.data();
        break;
      default:
        break;
    }
    EXPECT_TRUE(PackRows(m, 0, rows).ok());
    return m;
  }

  const WeightForm form_;
  const Isa isa_;
  std::shared_ptr<Model> model_;
  int64_t used_ = 0;
  std::mt19937_64 rng_{7};
};

// The decoder as the papers write it, in double, one token after the other.
class PlainDecoder {
 public:
  explicit PlainDecoder(const Model& model) : m_(model), c_(model.config) {}

  std::vector<double> Step(int32_t token) {
    const int32_t position = static_cast<int32_t>(keys_[0].size());
    std::vector<double> x = Row(m_.embedding, token);
    for (int32_t layer = 0; layer < c_.num_layers; ++layer) {
      const LayerWeights& w = m_.layers[layer];
      std::vector<double> qkv = Multiply(w.qkv, Norm(x, w.input_norm));
      for (size_t i = 0; i < w.qkv_bias.size(); ++i) qkv[i] += w.qkv_bias[i];
      for (int32_t h = 0; h < c_.num_q_heads + c_.num_kv_heads; ++h) {
        const bool is_q = h < c_.num_q_heads;
        Rotate(&qkv[h * c_.head_size], is_q ? w.q_norm : w.k_norm, position);
      }
      keys_[layer].emplace_back(qkv.begin() + c_.q_width(),
                                qkv.begin() + c_.q_width() + c_.kv_width());
      values_[layer].emplace_back(qkv.begin() + c_.q_width() + c_.kv_width(), qkv.end());
      std::vector<double> attended(c_.q_width(), 0.0);
      for (int32_t h = 0; h < c_.num_q_heads; ++h) Attend(layer, h, qkv, &attended);
      Add(&x, Multiply(w.o, attended));
      const std::vector<double> gate_up = Multiply(w.gate_up, Norm(x, w.post_attention_norm));
      std::vector<double> inner(c_.inner);
      for (int32_t i = 0; i < c_.inner; ++i) {
        inner[i] = gate_up[i] / (1 + std::exp(-gate_up[i])) * gate_up[c_.inner + i];
      }
      Add(&x, Multiply(w.down, inner));
    }
    return Multiply(m_.head, Norm(x, m_.final_norm));
  }

 private:
  static void Add(std::vector<double>* x, const std::vector<double>& y) {
    for (size_t i = 0; i < x->size(); ++i) (*x)[i] += y[i];
  }
  std::vector<double> Row(const PackedMatrix& w, int64_t row) {
    std::vector<float> values(w.k);
    DequantizeRow(w, row, values.data());
    return {values.begin(), values.end()};
  }
  std::vector<double> Multiply(const PackedMatrix& w, const std::vector<double>& x) {
    std::vector<double> y(w.n, 0.0);
    for (int64_t n = 0; n < w.n; ++n) {
      const std::vector<double> row = Row(w, n);
      for (int64_t k = 0; k < w.k; ++k) y[n] += row[k] * x[k];
    }
    return y;
  }
  std::vector<double> Norm(const std::vector<double>& x, const std::vector<float>& weight) {
    double sum = 0;
    for (double v : x) sum += v * v;
    const double factor = 1 / std::sqrt(sum / static_cast<double>(x.size()) + c_.rms_eps);
    std::vector<double> y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * factor * weight[i];
    return y;
  }
  void Rotate(double* head, const std::vector<float>& norm, int32_t position) {
    const int32_t size = c_.head_size;
    if (!norm.empty()) {
      const std::vector<double> y = Norm({head, head + size}, norm);
      std::copy(y.begin(), y.end(), head);
    }
    for (int32_t i = 0; i < size / 2; ++i) {
      const double angle = position * std::pow(c_.rope_theta, -2.0 * i / size);
      const double a = head[i], b = head[i + size / 2];
      head[i] = a * std::cos(angle) - b * std::sin(angle);
      head[i + size / 2] = b * std::cos(angle) + a * std::sin(angle);
    }
  }
  void Attend(int32_t layer, int32_t h, const std::vector<double>& q, std::vector<double>* out) {
    const int32_t size = c_.head_size;
    const int32_t kv = h / (c_.num_q_heads / c_.num_kv_heads) * size;
    double sum = 0;
    for (size_t p = 0; p < keys_[layer].size(); ++p) {
      double dot = 0;
      for (int32_t d = 0; d < size; ++d) dot += q[h * size + d] * keys_[layer][p][kv + d];
      const double weight = std::exp(dot / std::sqrt(size));
      sum += weight;
      for (int32_t d = 0; d < size; ++d) {
        (*out)[h * size + d] += weight * values_[layer][p][kv + d];
      }
    }
    for (int32_t d = 0; d < size; ++d) (*out)[h * size + d] /= sum;
  }

  const Model& m_;
  const ModelConfig& c_;
  std::map<int32_t, std::vector<std::vector<double>>> keys_, values_;  // by layer, position
};

std::vector<int32_t> Prompt(int32_t count) {
  std::vector<int32_t> tokens(count);
  for (int32_t i = 0; i < count; ++i) tokens[i] = (11 + 31 * i) % kVocab;
  return tokens;
}

// Runs the tokens in chunks and collects the logits of every row.
class Runner {
 public:
  Runner(std::shared_ptr<const Model> model, KvDtype kv, int threads, int32_t block_size = 16) {
    CpuBackendOptions options;
    options.num_threads = threads;
    options.isa = DetectIsa();
    options.kv_dtype = kv;
    options.block_size = block_size;
    options.kv_memory_bytes = int64_t{8} << 20;
    options.max_num_seqs = 4;
    options.max_num_batched_tokens = 64;
    options.max_model_len = 128;
    auto backend = CreateCpuBackend(std::move(model), options);
    EXPECT_TRUE(backend.ok()) << backend.status();
    backend_ = std::move(*backend);
    block_size_ = block_size;
    backend_->set_logits_observer(
        [this](const StepPlan& plan, int32_t row, std::span<const float> logits) {
          logits_[plan.sequences[0].first_position + row].assign(logits.begin(), logits.end());
        });
  }

  std::map<int32_t, std::vector<float>> Run(const std::vector<int32_t>& tokens,
                                            const std::vector<int32_t>& chunks) {
    logits_.clear();
    int32_t position = 0;
    for (const int32_t chunk : chunks) {
      StepPlan plan;
      plan.step_id = step_id_++;
      plan.sequences.push_back({1, 0, chunk, position, 0, 8});
      for (int32_t i = 0; i < 8; ++i) plan.block_ids.push_back((i * 5 + 3) % 8);
      for (int32_t i = 0; i < chunk; ++i) {
        plan.tokens.push_back({tokens[position + i], -1});
        plan.scores.push_back({i, 0, 0});
      }
      position += chunk;
      EXPECT_TRUE(backend_->Launch(plan).ok());
      EXPECT_TRUE(backend_->Finish().ok());
    }
    EXPECT_EQ(position, static_cast<int32_t>(tokens.size()));
    return logits_;
  }

 private:
  std::unique_ptr<CpuBackend> backend_;
  int32_t block_size_;
  int64_t step_id_ = 0;
  std::map<int32_t, std::vector<float>> logits_;
};

double RelativeError(const std::vector<float>& got, const std::vector<double>& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);
}

TEST(CpuBackend, MatchesThePlainDecoder) {
  struct FormCase {
    WeightForm form;
    KvDtype kv;
    double bound;  // of the relative L2 error of a row's logits
  };
  const FormCase forms[] = {
      {WeightForm::kF32, KvDtype::kF32, 1e-4},
      {WeightForm::kBf16, KvDtype::kBf16, 2e-2},
      // Activations in 8 bits; K and V in 4 significant bits (a relative step of 1/16). Attention of
      // a random model is sharp and amplifies both; an element in a wrong place gives about 1.
      {WeightForm::kInt8Channel, KvDtype::kBf16, 1e-1},
      {WeightForm::kInt4Group32Min, KvDtype::kBf16, 1e-1},
      {WeightForm::kBf16, KvDtype::kFp8E4m3, 2.5e-1},
  };
  const std::vector<int32_t> tokens = Prompt(50);
  for (const Shape& shape : kShapes) {
    for (const FormCase& f : forms) {
      SCOPED_TRACE(testing::Message()
                   << shape.name << " " << WeightFormName(f.form) << " kv " << KvDtypeName(f.kv));
      ModelMaker maker(shape, f.form, DetectIsa());
      PlainDecoder plain(*maker.model());
      Runner runner(maker.model(), f.kv, 2);
      const auto logits = runner.Run(tokens, {32, 17, 1});
      ASSERT_EQ(logits.size(), tokens.size());
      for (int32_t p = 0; p < static_cast<int32_t>(tokens.size()); ++p) {
        EXPECT_LE(RelativeError(logits.at(p), plain.Step(tokens[p])), f.bound) << "position " << p;
      }
    }
  }
}

TEST(CpuBackend, SameBitsForAnyChunkingAndThreadCount) {
  const std::vector<int32_t> tokens = Prompt(60);
  for (const WeightForm form : {WeightForm::kF32, WeightForm::kBf16, WeightForm::kInt8Channel,
                                WeightForm::kInt4Group32Min}) {
    for (const KvDtype kv : {KvDtype::kBf16, KvDtype::kFp8E4m3}) {
      SCOPED_TRACE(testing::Message() << WeightFormName(form) << " kv " << KvDtypeName(kv));
      ModelMaker maker(kShapes[0], form, DetectIsa());
      const auto want = Runner(maker.model(), kv, 1).Run(tokens, std::vector<int32_t>(60, 1));
      EXPECT_EQ(want, Runner(maker.model(), kv, 2).Run(tokens, {60}));
      EXPECT_EQ(want, Runner(maker.model(), kv, 3).Run(tokens, {7, 16, 3, 33, 1}));
    }
  }
}

TEST(CpuBackend, RefusesBrokenPlans) {
  ModelMaker maker(kShapes[0], WeightForm::kF32, DetectIsa());
  CpuBackendOptions options;
  options.isa = DetectIsa();
  options.kv_memory_bytes = 1 << 20;
  options.max_num_seqs = 2;
  options.max_num_batched_tokens = 8;
  options.max_model_len = 64;
  auto backend = CreateCpuBackend(maker.model(), options);
  ASSERT_TRUE(backend.ok());
  StepPlan good;
  good.sequences.push_back({1, 0, 1, 0, 0, 1});
  good.block_ids = {0};
  good.tokens.push_back({5, -1});
  const auto status_of = [&](auto change) {
    StepPlan plan = good;
    change(plan);
    return (*backend)->Launch(plan).code();
  };
  using absl::StatusCode;
  EXPECT_EQ(status_of([](StepPlan& p) { p.block_ids[0] = 1 << 20; }), StatusCode::kInternal);
  EXPECT_EQ(status_of([](StepPlan& p) { p.sequences[0].first_position = 64; }),
            StatusCode::kInternal);
  EXPECT_EQ(status_of([](StepPlan& p) { p.sequences[0].first_position = 16; }),
            StatusCode::kInternal);
  EXPECT_EQ(status_of([](StepPlan& p) { p.tokens.push_back({1, -1}); }), StatusCode::kInternal);
  EXPECT_EQ(status_of([](StepPlan& p) { p.tokens[0].token = kVocab; }), StatusCode::kInternal);
  EXPECT_EQ(status_of([](StepPlan& p) { p.tokens[0] = {-1, 0}; }), StatusCode::kInternal);
  EXPECT_EQ(status_of([](StepPlan& p) {
              p.samples.push_back({0, 1, 0, 0});
            }),
            StatusCode::kInternal);  // slot 1 was never attached
  EXPECT_EQ(status_of([](StepPlan&) {}), StatusCode::kOk);
}

TEST(CpuBackend, RefusesOptionsByName) {
  ModelMaker maker(kShapes[0], WeightForm::kF32, DetectIsa());
  CpuBackendOptions options;
  options.isa = DetectIsa();
  options.kv_memory_bytes = 100;
  auto backend = CreateCpuBackend(maker.model(), options);
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(backend.status().ToString().find("kv_cache_memory"), std::string::npos);
  options.kv_memory_bytes = 0;
  options.block_size = 24;
  EXPECT_EQ(CreateCpuBackend(maker.model(), options).status().code(),
            absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace quire
