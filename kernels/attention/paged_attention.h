// Causal paged attention over ragged batches: prefill chunks and decode in one call.
//
//   out[t, h] = sum_p softmax_p(scale * q[t, h] . K[p, h / (num_q_heads / num_kv_heads)]) V[p, ...]
//   for positions p in [0, position of t]; K and V are read from pages only, the chunk's own too.
//
// Numbers (the same bits for any batch, chunking, block table, thread count): positions are taken
// in chunks of kAttentionChunk counted from position 0; a chunk has its own maximum m, sum l and
// accumulator o; chunks are merged in order. A token's result never depends on the other rows of
// the call. Positions behind a token's own are skipped, not multiplied by 0: unused slots may hold
// anything, NaN included.
// Source: online softmax, Milakov and Gimelshein 2018; paged KV, Kwon et al., SOSP 2023.
#ifndef QUIRE_KERNELS_ATTENTION_PAGED_ATTENTION_H_
#define QUIRE_KERNELS_ATTENTION_PAGED_ATTENTION_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/common/impl.h"
#include "kernels/kv_layout/kv_layout.h"

namespace quire {

inline constexpr int32_t kAttentionChunk = 256;

struct PagedAttentionArgs {
  const float* q = nullptr;  // [num_tokens, num_q_heads, head_size], rows q_stride apart
  int64_t q_stride = 0;      // elements
  float* out = nullptr;      // [num_tokens, num_q_heads, head_size], rows out_stride apart
  int64_t out_stride = 0;    // elements
  float* lse = nullptr;      // [num_tokens, num_q_heads] natural log of the softmax sum, or null
  KvLayerView kv;            // the layer's pages
  KvLayout layout;           // of the pool; num_layers is not used
  int32_t num_q_heads = 0;   // a multiple of layout.num_kv_heads
  float scale = 0;           // usually 1 / sqrt(head_size)
  int32_t num_seqs = 0;      // >= 0; 0 does nothing
  const int32_t* q_begin = nullptr;         // [num_seqs + 1] first row of each sequence; ascending
  const int32_t* first_position = nullptr;  // [num_seqs] position of the sequence's first row
  // [num_seqs] offset of the sequence's table in block_ids; it covers positions
  // [0, first_position + number of its rows).
  const int64_t* table_begin = nullptr;
  const int32_t* block_ids = nullptr;
};

// Errors: INVALID_ARGUMENT or UNIMPLEMENTED naming the field, its value and the limit.
absl::Status ValidatePagedAttention(const PagedAttentionArgs& args);

// Scratch that a call with at most so many rows, and no sequence longer than max_context, may take.
int64_t PagedAttentionScratchBytes(const KvLayout& layout, int32_t num_q_heads, int64_t max_tokens,
                                   int64_t max_context, int num_threads);

std::span<const Impl<PagedAttentionArgs>> PagedAttentionImpls();

}  // namespace quire

#endif  // QUIRE_KERNELS_ATTENTION_PAGED_ATTENTION_H_
