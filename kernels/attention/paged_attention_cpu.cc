// Paged attention for one instruction set (attention_simd.h has what differs).
//
// Per chunk of 256 positions and tile of rows: scores of 16 tokens at a time (one accumulator a row
// and token, dims ascending), softmax within the chunk, probabilities times V 16 dims at a time
// (one accumulator a row and dim, tokens ascending). How many rows, tokens and dims are in flight
// hides the latency and changes no bit. Bound by memory in decode with BF16 pages, by conversion
// with FP8 pages, by FMAs in prefill.
#include <algorithm>
#include <cmath>

#include "kernels/attention/attention_simd.h"
#include "kernels/attention/paged_attention_internal.h"

namespace quire::QUIRE_ISA {

absl::Status PagedAttention(const PagedAttentionArgs& args, ExecContext& context);

namespace {

constexpr int kTileTokens = 16;  // of a tile of K and V: a block, or half of one of 32
constexpr int kChunkTiles = kAttentionChunk / kTileTokens;
constexpr int kPrefetchTiles = 2;
constexpr int64_t kLine = 64;  // bytes; 16 words
constexpr uint32_t kWholeWord = 0xffffffffu;

// How much is in flight, by rows in registers (at most kGroupRows): tiles of K, and runs of 16 dims
// of V. A multiply-add has 4 cycles of latency and 2 start in each, so 8 accumulators of 8 lanes
// are wanted. More dims of V at once would do for few rows, but read V in jumps: BF16 decode 20 %
// slower.
#if QUIRE_SIMD_AVX2 || QUIRE_SIMD_AVX512
constexpr int kGroupRows = 4;
constexpr int kScoreTiles[kGroupRows + 1] = {0, 4, 2, 1, 1};
constexpr int kValueDims[kGroupRows + 1] = {0, 2, 1, 1, 1};
#define QUIRE_UNROLL_HOT QUIRE_UNROLL
#else
constexpr int kGroupRows = 2;
constexpr int kScoreTiles[kGroupRows + 1] = {0, 1, 1};
constexpr int kValueDims[kGroupRows + 1] = {0, 1, 1};
#define QUIRE_UNROLL_HOT
#endif

// Hot loops stay functions of their own: inlined into one big one, GCC 12 spills their
// accumulators.
#define QUIRE_NOINLINE __attribute__((noinline))

QUIRE_INLINE void Prefetch(const std::byte* p) { __builtin_prefetch(p, 0, 3); }

// How K, V and the scales of a tile of 16 tokens lie.
struct TileShape {
  int32_t head_size;
  int64_t k_word_stride;  // bytes from a word of dims to the next
  int64_t v_dims_stride;  // bytes from 16 dims to the next
};

// Scores of R rows and N tiles of 16 tokens: scores[r][n * 16 ...].
// `q` [R][head_size] operands; `scale` [N] FP16 K scales, or null; `next` [N]: tiles to prefetch.
template <class Page, int R, int N>
QUIRE_NOINLINE void ScoreTiles(const TileShape& shape, const std::byte* const* k,
                               const std::byte* const* next, const std::byte* const* scale,
                               const uint32_t* q, float* scores) {
  F16L acc[R][N];
  QUIRE_UNROLL_HOT
  for (int r = 0; r < R; ++r) {
    QUIRE_UNROLL_HOT
    for (int n = 0; n < N; ++n) acc[r][n] = Zero();
  }
  // Copies: what lies in memory is read again in the loop (Fp8Page::Part).
  const int64_t word_stride = shape.k_word_stride;
  const int64_t q_stride = shape.head_size;
  const int32_t num_words = shape.head_size / Page::kGroup;
  const std::byte* words[N];
  const std::byte* ahead[N];
  QUIRE_UNROLL_HOT
  for (int n = 0; n < N; ++n) {
    words[n] = k[n];
    ahead[n] = next[n];
  }
  const uint32_t* scalars = q;
  for (int32_t w = 0; w < num_words; ++w) {
    QUIRE_UNROLL_HOT
    for (int n = 0; n < N; ++n) {
      Prefetch(ahead[n]);
      typename Page::State state;
      QUIRE_UNROLL_HOT
      for (int part = 0; part < Page::kParts; ++part) {
        const auto x = Page::Part(words[n], kWholeWord, part, state);
        QUIRE_UNROLL_HOT
        for (int r = 0; r < R; ++r) {
          acc[r][n] = Page::Accumulate(acc[r][n], x, scalars[r * q_stride + Page::kOrder[part]]);
        }
      }
      words[n] += word_stride;
      ahead[n] += word_stride;
    }
    scalars += Page::kParts;
  }
  QUIRE_UNROLL_HOT
  for (int n = 0; n < N; ++n) {
    if (scale == nullptr) {
      QUIRE_UNROLL_HOT
      for (int r = 0; r < R; ++r) {
        Store(scores + r * kAttentionChunk + n * kTileTokens, acc[r][n]);
      }
    } else {
      const F16L s = Mul(LoadHalf(scale[n]), Broadcast(Page::kResultScale));
      QUIRE_UNROLL_HOT
      for (int r = 0; r < R; ++r) {
        Store(scores + r * kAttentionChunk + n * kTileTokens, Mul(acc[r][n], s));
      }
    }
  }
}

template <class Page, int R>
void ScoreRows(int num_rows, int num_tiles, const TileShape& shape, const std::byte* const* k,
               const std::byte* const* next, const std::byte* const* scale, const uint32_t* q,
               float* scores) {
  if constexpr (R > 1) {
    if (num_rows < R) {
      return ScoreRows<Page, R - 1>(num_rows, num_tiles, shape, k, next, scale, q, scores);
    }
  }
  constexpr int N = kScoreTiles[R];
  const auto scale_at = [&](int i) { return scale == nullptr ? nullptr : scale + i; };
  int n = 0;
  for (; n + N <= num_tiles; n += N) {
    ScoreTiles<Page, R, N>(shape, k + n, next + n, scale_at(n), q, scores + n * kTileTokens);
  }
  for (; n < num_tiles; ++n) {
    ScoreTiles<Page, R, 1>(shape, k + n, next + n, scale_at(n), q, scores + n * kTileTokens);
  }
}

// out[r][0 ... 16 C) += p[r] * V of one tile, the first `count` tokens. `p` [R][kAttentionChunk]
// operands, 0 from `count` on.
template <class Page, int R, int C>
QUIRE_NOINLINE void AddValues(const TileShape& shape, const std::byte* v, const std::byte* next,
                              const uint32_t* p, int count, float* out, int64_t out_stride) {
  F16L acc[R][C];
  QUIRE_UNROLL_HOT
  for (int r = 0; r < R; ++r) {
    QUIRE_UNROLL_HOT
    for (int c = 0; c < C; ++c) acc[r][c] = Load(out + r * out_stride + c * 16);
  }
  const int64_t dims_stride = shape.v_dims_stride;
  const auto add_word = [&](uint32_t mask) __attribute__((always_inline)) {
    QUIRE_UNROLL_HOT
    for (int c = 0; c < C; ++c) {
      Prefetch(next + c * dims_stride);
      typename Page::State state;
      QUIRE_UNROLL_HOT
      for (int part = 0; part < Page::kParts; ++part) {
        const auto x = Page::Part(v + c * dims_stride, mask, part, state);
        QUIRE_UNROLL_HOT
        for (int r = 0; r < R; ++r) {
          acc[r][c] = Page::Accumulate(acc[r][c], x, p[r * kAttentionChunk + Page::kOrder[part]]);
        }
      }
    }
    v += kLine;
    next += kLine;
    p += Page::kParts;
  };
  for (int w = count / Page::kGroup; w > 0; --w) add_word(kWholeWord);
  // The rest of a word is cleared before it is multiplied: it may hold anything.
  if constexpr (Page::kGroup > 1) {
    const int rest = count % Page::kGroup;
    if (rest != 0) add_word(kWholeWord >> (32 - rest * (32 / Page::kGroup)));
  }
  QUIRE_UNROLL_HOT
  for (int r = 0; r < R; ++r) {
    QUIRE_UNROLL_HOT
    for (int c = 0; c < C; ++c) Store(out + r * out_stride + c * 16, acc[r][c]);
  }
}

template <class Page, int R>
void AddRows(int num_rows, const TileShape& shape, const std::byte* v, const std::byte* next,
             const uint32_t* p, int count, float* out, int64_t out_stride) {
  if constexpr (R > 1) {
    if (num_rows < R) {
      return AddRows<Page, R - 1>(num_rows, shape, v, next, p, count, out, out_stride);
    }
  }
  constexpr int C = kValueDims[R];
  const int num_groups = shape.head_size / 16;
  int c = 0;
  for (; c + C <= num_groups; c += C) {
    AddValues<Page, R, C>(shape, v + c * shape.v_dims_stride, next + c * shape.v_dims_stride, p,
                          count, out + c * 16, out_stride);
  }
  for (; c < num_groups; ++c) {
    AddValues<Page, R, 1>(shape, v + c * shape.v_dims_stride, next + c * shape.v_dims_stride, p,
                          count, out + c * 16, out_stride);
  }
}

// Softmax within a chunk of one row: scores [0, count) to packed probabilities (times the V
// scales), 0 up to the end of the last tile. Gives the maximum and the sum.
template <class Page>
void SoftmaxRow(const float* scores, int count, const float* v_scales, uint32_t* p, float* max,
                float* sum) {
  const int whole = count / kTileTokens * kTileTokens;
  const int rest = count - whole;
  F16L m = Broadcast(kNegativeInfinity);
  for (int i = 0; i < whole; i += kTileTokens) m = Max(m, Load(scores + i));
  if (rest != 0) m = Max(m, Keep(Load(scores + whole), rest, kNegativeInfinity));
  *max = MaxLanes(m);
  m = Broadcast(*max);
  F16L total = Zero();
  for (int i = 0; i < whole; i += kTileTokens) {
    F16L e = ExpOf(Sub(Load(scores + i), m));
    total = Add(total, e);
    if (v_scales != nullptr) e = Mul(e, Load(v_scales + i));
    Page::Pack(e, p + i / Page::kGroup * Page::kParts);
  }
  if (rest != 0) {
    F16L e = Keep(ExpOf(Sub(Load(scores + whole), m)), rest, 0.0f);
    total = Add(total, e);
    if (v_scales != nullptr) e = Keep(Mul(e, Load(v_scales + whole)), rest, 0.0f);
    Page::Pack(e, p + whole / Page::kGroup * Page::kParts);
  }
  *sum = SumLanes(total);
}

// state = state merged with a chunk behind it; both [head_size] accumulator, maximum, sum.
void MergeRow(int32_t head_size, bool first, const float* chunk, float* state) {
  if (first) {
    std::memcpy(state, chunk, sizeof(float) * (head_size + 2));
    return;
  }
  const float old_max = state[head_size];
  const float chunk_max = chunk[head_size];
  const float max = old_max > chunk_max ? old_max : chunk_max;
  const float keep = ExpNonPositive(old_max - max);
  const float add = ExpNonPositive(chunk_max - max);
  for (int32_t d = 0; d < head_size; d += 16) {
    Store(state + d,
          MulAdd(Load(chunk + d), Broadcast(add), Mul(Load(state + d), Broadcast(keep))));
  }
  state[head_size] = max;
  state[head_size + 1] = state[head_size + 1] * keep + chunk[head_size + 1] * add;
}

struct RowPlace {
  int64_t row;   // in q and out
  int32_t head;  // query head
  int32_t position;
};

RowPlace PlaceOf(const AttentionTile& tile, int r) {
  const int32_t group = tile.group();
  const int64_t flat = tile.flat_begin + r;
  const int32_t row = static_cast<int32_t>(flat / group);
  return {tile.first_row + row, tile.kv_head * group + static_cast<int32_t>(flat % group),
          tile.first_position + row};
}

template <class Page>
void FinishRow(const AttentionTile& tile, int r, const float* state) {
  const PagedAttentionArgs& args = *tile.args;
  const int32_t head_size = args.layout.head_size;
  const RowPlace place = PlaceOf(tile, r);
  float* out = args.out + place.row * args.out_stride + int64_t{place.head} * head_size;
  const F16L factor = Broadcast(Page::kResultScale / state[head_size + 1]);
  for (int32_t d = 0; d < head_size; d += 16) Store(out + d, Mul(Load(state + d), factor));
  if (args.lse != nullptr) {
    args.lse[place.row * args.num_q_heads + place.head] =
        state[head_size] + std::log(state[head_size + 1]);
  }
}

template <class Page>
void PackQueries(const AttentionTile& tile, uint32_t* q) {
  const PagedAttentionArgs& args = *tile.args;
  const int32_t head_size = args.layout.head_size;
  const F16L scale = Broadcast(args.scale * Page::kOperandScale);
  for (int r = 0; r < tile.num_rows; ++r) {
    const RowPlace place = PlaceOf(tile, r);
    const float* x = args.q + place.row * args.q_stride + int64_t{place.head} * head_size;
    for (int32_t d = 0; d < head_size; d += 16) {
      Page::Pack(Mul(Load(x + d), scale), q + r * head_size + d / Page::kGroup * Page::kParts);
    }
  }
}

// Where the tiles of a chunk are, and which to ask for ahead of time.
struct ChunkTiles {
  int num_tiles;
  const std::byte* k[kChunkTiles];
  const std::byte* v[kChunkTiles];
  const std::byte* k_scales[kChunkTiles];
  const std::byte* next_of_k[kChunkTiles];
  const std::byte* next_of_v[kChunkTiles];
};

// `end`: positions [chunk * kAttentionChunk, end) are read.
void FindTiles(const AttentionTile& tile, int32_t chunk, int32_t end, ChunkTiles* tiles) {
  const PagedAttentionArgs& args = *tile.args;
  const KvLayout& layout = args.layout;
  const int32_t begin = chunk * kAttentionChunk;
  const int32_t block_tiles = layout.block_size / kTileTokens;
  const int64_t stripe_bytes = layout.stripe_bytes();
  const int64_t v_offset = layout.v_offset_bytes();
  const int64_t v_half_bytes = kTileTokens / layout.group() * kLine;
  const int64_t k_scale_offset = layout.k_scale_offset_bytes();
  const int n = (std::min(end - begin, kAttentionChunk) + kTileTokens - 1) / kTileTokens;
  tiles->num_tiles = n;
  for (int i = 0; i < n; ++i) {
    const int32_t index = begin / kTileTokens + i;
    const int32_t half = index % block_tiles;
    const std::byte* stripe =
        args.kv.stripe(tile.block_ids[index / block_tiles], tile.kv_head, stripe_bytes);
    tiles->k[i] = stripe + half * kLine;
    tiles->v[i] = stripe + v_offset + half * v_half_bytes;
    tiles->k_scales[i] = stripe + k_scale_offset + half * 2 * kTileTokens;
  }
  for (int i = 0; i < n; ++i) {
    const int j = i + kPrefetchTiles;
    tiles->next_of_k[i] = j < n ? tiles->k[j] : tiles->v[std::min(j - n, n - 1)];
    tiles->next_of_v[i] = tiles->v[std::min(j, n - 1)];
    const int32_t after = (begin + kAttentionChunk) / kTileTokens + j - n;
    if (j >= n && after * kTileTokens < end) {  // K of the next chunk
      tiles->next_of_v[i] =
          args.kv.stripe(tile.block_ids[after / block_tiles], tile.kv_head, stripe_bytes) +
          after % block_tiles * kLine;
    }
  }
}

// One chunk of the tile's rows [first_active, num_rows): accumulator, maximum and sum of row r to
// partial + r * PartialStride.
template <class Page>
void RunChunk(const AttentionTile& tile, int32_t chunk, int first_active,
              const AttentionBuffers& buffers, float* partial) {
  const KvLayout& layout = tile.args->layout;
  const int32_t head_size = layout.head_size;
  const int64_t stride = PartialStride(head_size);
  const TileShape shape{head_size, int64_t{layout.block_size} * 4,
                        layout.block_size / Page::kGroup * kLine};
  const bool fp8 = Page::kGroup == 4;
  const int num_rows = tile.num_rows;

  int count[kAttentionTileRows];  // positions of the chunk that a row sees; ascending
  for (int r = first_active; r < num_rows; ++r) {
    count[r] = std::min(kAttentionChunk, PlaceOf(tile, r).position + 1 - chunk * kAttentionChunk);
  }
  ChunkTiles tiles;
  FindTiles(tile, chunk, PlaceOf(tile, num_rows - 1).position + 1, &tiles);
  const auto* repeat_k = tiles.k;  // prefetching again what is there costs next to nothing

  // Scores: a few tiles at a time for all rows, so that K comes from memory once.
  constexpr int kTilesAtOnce = 4;
  for (int i = 0; i < tiles.num_tiles; i += kTilesAtOnce) {
    const int n = std::min(kTilesAtOnce, tiles.num_tiles - i);
    for (int r = first_active; r < num_rows; r += kGroupRows) {
      const int rows = std::min(kGroupRows, num_rows - r);
      if (count[r + rows - 1] <= i * kTileTokens) continue;
      ScoreRows<Page, kGroupRows>(rows, n, shape, tiles.k + i,
                                  (r == first_active ? tiles.next_of_k : repeat_k) + i,
                                  fp8 ? tiles.k_scales + i : nullptr, buffers.q + r * head_size,
                                  buffers.scores + r * kAttentionChunk + i * kTileTokens);
    }
  }

  if (fp8) {
    for (int i = 0; i < tiles.num_tiles; ++i) {
      const std::byte* v_scales = tiles.k_scales[i] + 2 * layout.block_size;
      Store(buffers.v_scales + i * kTileTokens,
            Mul(LoadHalf(v_scales), Broadcast(Page::kOperandScale)));
    }
  }
  for (int r = first_active; r < num_rows; ++r) {
    float* row = partial + r * stride;
    SoftmaxRow<Page>(buffers.scores + r * kAttentionChunk, count[r],
                     fp8 ? buffers.v_scales : nullptr, buffers.p + r * kAttentionChunk,
                     row + head_size, row + head_size + 1);
    std::memset(row, 0, sizeof(float) * head_size);
  }

  for (int i = 0; i < tiles.num_tiles; ++i) {
    const int begin = i * kTileTokens;
    const int p_offset = begin / Page::kGroup * Page::kParts;
    for (int r = first_active; r < num_rows;) {
      // Rows that see the whole tile go together, others with those that see as much of it.
      int rows = 1;
      const int seen = std::min(count[r] - begin, kTileTokens);
      while (rows < kGroupRows && r + rows < num_rows &&
             std::min(count[r + rows] - begin, kTileTokens) == seen) {
        ++rows;
      }
      if (seen > 0) {
        AddRows<Page, kGroupRows>(
            rows, shape, tiles.v[i], r == first_active ? tiles.next_of_v[i] : tiles.v[i],
            buffers.p + r * kAttentionChunk + p_offset, seen, partial + r * stride, stride);
      }
      r += rows;
    }
  }
}

template <class Page>
void RunTile(const AttentionTile& tile, int32_t chunk_begin, int32_t chunk_end, float* partials,
             const AttentionBuffers& buffers) {
  const int32_t head_size = tile.args->layout.head_size;
  const int64_t stride = PartialStride(head_size);
  PackQueries<Page>(tile, buffers.q);
  int first_active = 0;
  for (int32_t chunk = chunk_begin; chunk < chunk_end; ++chunk) {
    while (PlaceOf(tile, first_active).position < chunk * kAttentionChunk) ++first_active;
    float* partial =
        partials == nullptr ? buffers.partial : partials + chunk * tile.num_rows * stride;
    RunChunk<Page>(tile, chunk, first_active, buffers, partial);
    if (partials != nullptr) continue;
    for (int r = first_active; r < tile.num_rows; ++r) {
      MergeRow(head_size, chunk == 0, partial + r * stride, buffers.state + r * stride);
    }
  }
  if (partials != nullptr) return;
  for (int r = 0; r < tile.num_rows; ++r) FinishRow<Page>(tile, r, buffers.state + r * stride);
}

template <class Page>
void MergeTile(const AttentionTile& tile, const float* partials, const AttentionBuffers& buffers) {
  const int32_t head_size = tile.args->layout.head_size;
  const int64_t stride = PartialStride(head_size);
  for (int r = 0; r < tile.num_rows; ++r) {
    const int32_t num_chunks = PlaceOf(tile, r).position / kAttentionChunk + 1;
    for (int32_t chunk = 0; chunk < num_chunks; ++chunk) {
      MergeRow(head_size, chunk == 0, partials + (chunk * tile.num_rows + r) * stride,
               buffers.state);
    }
    FinishRow<Page>(tile, r, buffers.state);
  }
}

template <class Page>
constexpr AttentionKernel kKernel{&RunTile<Page>, &MergeTile<Page>};

}  // namespace

absl::Status PagedAttention(const PagedAttentionArgs& args, ExecContext& context) {
  switch (args.layout.dtype) {
    case KvDtype::kF32:
      return RunPagedAttention(args, context, kKernel<F32Page>);
    case KvDtype::kBf16:
      return RunPagedAttention(args, context, kKernel<Bf16Page>);
    case KvDtype::kFp8E4m3:
      return RunPagedAttention(args, context, kKernel<Fp8Page<Fp8Kind::kE4m3>>);
    case KvDtype::kFp8E5m2:
      return RunPagedAttention(args, context, kKernel<Fp8Page<Fp8Kind::kE5m2>>);
  }
  return absl::InvalidArgumentError("layout.dtype is unknown");
}

}  // namespace quire::QUIRE_ISA
