// Which thread computes what. Results do not depend on it (paged_attention.h), so the plan follows
// the threads and the scratch that there are.
#include <algorithm>

#include "kernels/attention/paged_attention_internal.h"

namespace quire {
namespace {

// A work item of more than 1 / (threads * kSplitShare) of a call is split over chunks, into pieces
// of about half that: enough for a slow core to fall behind by a tenth without the others waiting.
constexpr int64_t kSplitShare = 4;

// More scratch than this for split contexts is not asked for; what does not fit stays unsplit.
constexpr int64_t kMaxPartialBytes = int64_t{64} << 20;

// The same tile of every KV head.
struct TileRecord {
  int32_t seq;
  int32_t num_rows;
  int64_t flat_begin;
  int32_t num_chunks;
  int32_t num_pieces;  // 1: not split
  int64_t cost;        // of one KV head, in (row, position) pairs
  int64_t first_item;  // items are [KV head][piece]
  float* partials;     // [KV head][chunk][row][PartialStride], if split
};

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t ThreadBufferFloats(int32_t head_size) {
  return kAttentionTileRows *
             (int64_t{head_size} + 2 * kAttentionChunk + 2 * PartialStride(head_size)) +
         kAttentionChunk;
}

AttentionBuffers BuffersOf(float* memory, int32_t head_size) {
  AttentionBuffers b;
  b.q = reinterpret_cast<uint32_t*>(memory);
  b.p = b.q + kAttentionTileRows * head_size;
  b.scores = reinterpret_cast<float*>(b.p + kAttentionTileRows * kAttentionChunk);
  b.v_scales = b.scores + kAttentionTileRows * kAttentionChunk;
  b.partial = b.v_scales + kAttentionChunk;
  b.state = b.partial + kAttentionTileRows * PartialStride(head_size);
  return b;
}

int64_t NumTiles(const PagedAttentionArgs& args, int32_t seq) {
  const int64_t group = args.num_q_heads / args.layout.num_kv_heads;
  return CeilDiv((args.q_begin[seq + 1] - args.q_begin[seq]) * group, kAttentionTileRows);
}

AttentionTile TileOf(const PagedAttentionArgs& args, const TileRecord& record, int32_t kv_head) {
  AttentionTile tile;
  tile.args = &args;
  tile.kv_head = kv_head;
  tile.first_row = args.q_begin[record.seq];
  tile.first_position = args.first_position[record.seq];
  tile.block_ids = args.block_ids + args.table_begin[record.seq];
  tile.flat_begin = record.flat_begin;
  tile.num_rows = record.num_rows;
  tile.num_chunks = record.num_chunks;
  return tile;
}

// Fills `records` and gives the cost of the call.
int64_t ListTiles(const PagedAttentionArgs& args, TileRecord* records) {
  const int64_t group = args.num_q_heads / args.layout.num_kv_heads;
  int64_t total = 0;
  for (int32_t s = 0; s < args.num_seqs; ++s) {
    const int64_t num_flat = (args.q_begin[s + 1] - args.q_begin[s]) * group;
    for (int64_t begin = 0; begin < num_flat; begin += kAttentionTileRows) {
      const int64_t rows = std::min<int64_t>(kAttentionTileRows, num_flat - begin);
      const int64_t last_position = args.first_position[s] + (begin + rows - 1) / group;
      TileRecord& record = *records++;
      record = {};
      record.seq = s;
      record.num_rows = static_cast<int32_t>(rows);
      record.flat_begin = begin;
      record.num_chunks = static_cast<int32_t>(last_position / kAttentionChunk + 1);
      record.num_pieces = 1;
      record.cost = rows * (last_position + 1);
      total += record.cost;
    }
  }
  return total * args.layout.num_kv_heads;
}

// Cuts the few tiles that would keep one thread busy for long, while scratch lasts.
void SplitLongTiles(const PagedAttentionArgs& args, std::span<TileRecord> records,
                    int64_t total_cost, int num_threads, ScratchArena& scratch) {
  if (num_threads == 1) return;
  const int64_t limit = std::max<int64_t>(1, total_cost / (num_threads * kSplitShare));
  for (TileRecord& record : records) {  // the longest first
    if (record.cost <= limit) break;
    if (record.num_chunks == 1) continue;
    const int64_t floats = int64_t{args.layout.num_kv_heads} * record.num_chunks * record.num_rows *
                           PartialStride(args.layout.head_size);
    const int64_t bytes = floats * static_cast<int64_t>(sizeof(float)) + 64;
    if (bytes > scratch.capacity_bytes() - scratch.used_bytes()) continue;
    record.partials = scratch.Take<float>(floats);
    record.num_pieces =
        static_cast<int32_t>(std::min<int64_t>(record.num_chunks, CeilDiv(2 * record.cost, limit)));
  }
}

}  // namespace

int64_t PagedAttentionScratchBytes(const KvLayout& layout, int32_t num_q_heads, int64_t max_tokens,
                                   int64_t max_context, int num_threads) {
  const int64_t group = num_q_heads / layout.num_kv_heads;
  const int64_t records = max_tokens * CeilDiv(group, kAttentionTileRows);
  int64_t partial_bytes = 0;
  if (num_threads > 1) {  // fewer than threads * kSplitShare items can be above the limit
    partial_bytes = num_threads * kSplitShare * kAttentionTileRows *
                    CeilDiv(max_context, kAttentionChunk) * PartialStride(layout.head_size) *
                    static_cast<int64_t>(sizeof(float));
  }
  const int64_t thread_bytes =
      num_threads * ThreadBufferFloats(layout.head_size) * static_cast<int64_t>(sizeof(float));
  // Each Take may lose 64 bytes to alignment.
  return records * static_cast<int64_t>(sizeof(TileRecord)) + thread_bytes +
         std::min(partial_bytes, kMaxPartialBytes) + 64 * (2 + num_threads * kSplitShare);
}

absl::Status RunPagedAttention(const PagedAttentionArgs& args, ExecContext& context,
                               const AttentionKernel& kernel) {
  RETURN_IF_ERROR(ValidatePagedAttention(args));
  const int num_threads = context.pool.num_threads();
  const int32_t num_heads = args.layout.num_kv_heads;
  int64_t num_records = 0;
  for (int32_t s = 0; s < args.num_seqs; ++s) num_records += NumTiles(args, s);
  if (num_records == 0) return absl::OkStatus();

  const std::span<TileRecord> records(context.scratch.Take<TileRecord>(num_records), num_records);
  const int64_t buffer_floats = ThreadBufferFloats(args.layout.head_size);
  float* buffers = context.scratch.Take<float>(num_threads * buffer_floats);
  const int64_t total_cost = ListTiles(args, records.data());
  std::sort(records.begin(), records.end(), [](const TileRecord& a, const TileRecord& b) {
    if (a.cost != b.cost) return a.cost > b.cost;
    return a.seq != b.seq ? a.seq < b.seq : a.flat_begin < b.flat_begin;
  });
  SplitLongTiles(args, records, total_cost, num_threads, context.scratch);

  int64_t num_items = 0;
  int64_t num_split = 0;  // they come first, except where scratch ran out
  for (int64_t i = 0; i < num_records; ++i) {
    records[i].first_item = num_items;
    num_items += int64_t{num_heads} * records[i].num_pieces;
    if (records[i].num_pieces > 1) num_split = i + 1;
  }

  context.pool.ParallelFor(num_items, [&](int64_t item, int thread) {
    const auto after = std::upper_bound(
        records.begin(), records.end(), item,
        [](int64_t value, const TileRecord& record) { return value < record.first_item; });
    const TileRecord& record = *(after - 1);
    const int64_t index = item - record.first_item;
    const int32_t head = static_cast<int32_t>(index / record.num_pieces);
    const int64_t piece = index % record.num_pieces;
    float* partials = nullptr;
    if (record.num_pieces > 1) {
      partials = record.partials + int64_t{head} * record.num_chunks * record.num_rows *
                                       PartialStride(args.layout.head_size);
    }
    kernel.run(TileOf(args, record, head),
               static_cast<int32_t>(piece * record.num_chunks / record.num_pieces),
               static_cast<int32_t>((piece + 1) * record.num_chunks / record.num_pieces), partials,
               BuffersOf(buffers + thread * buffer_floats, args.layout.head_size));
  });
  if (num_split == 0) return absl::OkStatus();

  context.pool.ParallelFor(num_split * num_heads, [&](int64_t item, int thread) {
    const TileRecord& record = records[item / num_heads];
    if (record.num_pieces == 1) return;
    const int32_t head = static_cast<int32_t>(item % num_heads);
    kernel.merge(TileOf(args, record, head),
                 record.partials + int64_t{head} * record.num_chunks * record.num_rows *
                                       PartialStride(args.layout.head_size),
                 BuffersOf(buffers + thread * buffer_floats, args.layout.head_size));
  });
  return absl::OkStatus();
}

}  // namespace quire
