// Between the driver of paged attention (which work is done where) and its kernels (one file,
// compiled for each instruction set).
//
// A "flat row" of (sequence, KV head) is one (query row, query head of the group): row i of the
// sequence and head j of the group have flat index i * group + j, so positions ascend with it. A
// tile is a run of at most kAttentionTileRows flat rows; they share every load of K and V.
#ifndef QUIRE_KERNELS_ATTENTION_PAGED_ATTENTION_INTERNAL_H_
#define QUIRE_KERNELS_ATTENTION_PAGED_ATTENTION_INTERNAL_H_

#include <cstdint>

#include "kernels/attention/paged_attention.h"

namespace quire {

// 16 rows: a 4 KiB K tile (BF16, head size 128) from the level 2 cache then feeds 64 KFLOP, and the
// buffers of a tile (57 KiB) stay in that cache.
inline constexpr int32_t kAttentionTileRows = 16;

struct AttentionTile {
  const PagedAttentionArgs* args;
  int32_t kv_head;
  int64_t first_row;         // of the sequence, in q and out
  int32_t first_position;    // of that row
  const int32_t* block_ids;  // the sequence's table
  int64_t flat_begin;
  int32_t num_rows;    // 1 ... kAttentionTileRows
  int32_t num_chunks;  // that the last row sees

  int32_t group() const { return args->num_q_heads / args->layout.num_kv_heads; }
};

// One thread's buffers, 64-byte aligned, D = head size, R = kAttentionTileRows.
struct AttentionBuffers {
  uint32_t* q;      // [R][D] operands
  uint32_t* p;      // [R][kAttentionChunk] operands
  float* scores;    // [R][kAttentionChunk]
  float* v_scales;  // [kAttentionChunk]
  float* partial;   // [R][PartialStride(D)], of the current chunk
  float* state;     // [R][PartialStride(D)], of all chunks so far
};

// A partial result of a row: accumulator [D], maximum, sum, padding to whole cache lines.
inline int64_t PartialStride(int32_t head_size) { return head_size + 16; }

struct AttentionKernel {
  // Chunks [chunk_begin, chunk_end) of a tile. partials == nullptr: from chunk 0 to the end, merged
  // and written to out and lse. Else the partials of chunk c, row r go to
  // partials + (c * num_rows + r) * PartialStride.
  void (*run)(const AttentionTile& tile, int32_t chunk_begin, int32_t chunk_end, float* partials,
              const AttentionBuffers& buffers);
  // Merges all chunks' partials in order and writes out and lse: the same bits as one run.
  void (*merge)(const AttentionTile& tile, const float* partials, const AttentionBuffers& buffers);
};

// Plans the call's work over the pool's threads and runs it.
absl::Status RunPagedAttention(const PagedAttentionArgs& args, ExecContext& context,
                               const AttentionKernel& kernel);

}  // namespace quire

#endif  // QUIRE_KERNELS_ATTENTION_PAGED_ATTENTION_INTERNAL_H_
