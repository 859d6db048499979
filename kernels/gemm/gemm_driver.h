// The loops around the kernels, the same for every form and instruction set.
//
// A form's kernels are a struct `Ops`:
//
//   kPanelRows, kBlockRows             columns of a panel; rows of a full block (MR)
//   kActivation, kGrouped              what prepare.h makes of x
//   kDirectRows                        at most so many rows run Direct; 0: there is none
//   kDepthTile                         k of one slice (a multiple of 128)
//   PanelBytes(k)
//   Direct<MR, P>(RowBlock, panel, panel_bytes, k, next, tile)
//       P panels at a time straight from packed memory: latency is hidden, and DRAM fed, by more
//       columns, never by splitting k. tile [MR][P * kPanelRows]
//   SliceAt(k)
//       byte offset in a panel of the slice that begins at k, a multiple of kDepthTile
//   Slice(packed, k_count, scratch) -> const std::byte*
//       the slice as Block reads it: widened into scratch (kSliceBytes), or where it lies
//   Block<MR>(RowBlock, slice, k_count, first, next, tile)
//       adds the slice's products to tile [MR][kPanelRows]; `first`: begins the chains at zero
//   (`next`: packed bytes that this thread reads next, to ask for meanwhile; null: none)
//   Finish(chains, x_scale, x_sum, panel, k)
//       turns what the kPanelRows chains of a row hold into F32; nothing where they are F32
//
// A chain that goes through the tile between slices is stored and loaded as it is, so slices do
// not change a bit, and Direct and Block do the same operations in the same order.
//
// Included by SIMD sources only; everything is in the namespace of the instruction set.
#ifndef QUIRE_KERNELS_GEMM_GEMM_DRIVER_H_
#define QUIRE_KERNELS_GEMM_GEMM_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/common/simd.h"
#include "kernels/gemm/prepare.h"

namespace quire::QUIRE_ISA {

constexpr int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t Max(int64_t a, int64_t b) { return a > b ? a : b; }
constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows of a full block. The simulated build takes few: it is slow to compile and only tested.
#if defined(QUIRE_AVX512_SIMULATED)
template <int64_t rows>
constexpr int64_t kRowsInRegisters = 3;
#else
template <int64_t rows>
constexpr int64_t kRowsInRegisters = rows;
#endif

// Calls fn with std::integral_constant<int, rows>. Requires 1 <= rows <= kMax.
template <int kMax, class Fn>
inline void WithRows(int64_t rows, Fn fn) {
  if constexpr (kMax > 1) {
    if (rows < kMax) {
      WithRows<kMax - 1>(rows, fn);
      return;
    }
  }
  fn(std::integral_constant<int, kMax>{});
}

// y = chain (+ bias), or y += that. One order of additions at every M.
inline void StoreRow(const GemmArgs& args, int64_t row, int64_t column, const float* chain,
                     int64_t count) {
  float* y = args.y + row * args.y_stride + column;
  const float* bias = args.bias == nullptr ? nullptr : args.bias + column;
  if (bias != nullptr) {
    for (int64_t c = 0; c < count; ++c) {
      const float v = chain[c] + bias[c];
      y[c] = args.accumulate ? y[c] + v : v;
    }
  } else if (args.accumulate) {
    for (int64_t c = 0; c < count; ++c) y[c] = y[c] + chain[c];
  } else {
    for (int64_t c = 0; c < count; ++c) y[c] = chain[c];
  }
}

template <class Ops>
class GemmRun {
 public:
  static constexpr int64_t kR = Ops::kPanelRows;
  static constexpr int64_t kElements = ElementsPerWord(Ops::kActivation);

  explicit GemmRun(const GemmCall& call)
      : args_(call.args),
        pool_(call.pool),
        m_(call.args.m),
        n_(call.args.w->n),
        k_(call.args.w->k),
        num_panels_(CeilDiv(n_, kR)),
        panel_bytes_(Ops::PanelBytes(k_)),
        groups_(Ops::kGrouped ? k_ / 32 : 1),
        layout_(MakeGemmScratchLayout(call.args.w->form, kR, m_, k_, call.pool.num_threads())),
        scratch_(call.scratch) {}

  void Run() {
    Prepare();
    if constexpr (Ops::kDirectRows > 0) {
      if (m_ <= Ops::kDirectRows) {
        RunDirect();
        return;
      }
    }
    RunBlocked();
  }

 private:
  uint32_t* words() const { return reinterpret_cast<uint32_t*>(scratch_ + layout_.words_at); }
  float* scales() const { return reinterpret_cast<float*>(scratch_ + layout_.scales_at); }
  int32_t* sums() const { return reinterpret_cast<int32_t*>(scratch_ + layout_.sums_at); }
  const std::byte* Panel(int64_t p) const { return args_.w->data + p * panel_bytes_; }

  RowBlock BlockAt(int64_t row, int64_t rows, int64_t k_begin) const {
    const int64_t group = Ops::kGrouped ? k_begin / 32 : 0;
    return {words() + row * (k_ / kElements) + k_begin / kElements * rows,
            scales() + row * groups_ + group * rows, sums() + row * groups_ + group * rows};
  }

  void PrepareBlock(int64_t begin) {
    const int64_t rows = Min(Ops::kBlockRows, m_ - begin);
    for (int64_t r = 0; r < rows; ++r) {
      PrepareRow<Ops::kActivation, Ops::kGrouped>(
          args_.x + (begin + r) * args_.x_stride, k_, rows, words() + begin * (k_ / kElements) + r,
          scales() + begin * groups_ + r, sums() + begin * groups_ + r);
    }
  }

  void Prepare() {
    const int64_t blocks = CeilDiv(m_, Ops::kBlockRows);
    if (m_ * k_ < 32768) {  // cheaper than waking a thread
      for (int64_t b = 0; b < blocks; ++b) PrepareBlock(b * Ops::kBlockRows);
      return;
    }
    pool_.ParallelFor(blocks, [this](int64_t b, int) { PrepareBlock(b * Ops::kBlockRows); });
  }

  // Panels [begin, end), as many at a time as the rows leave registers for.
  template <int MR, int P>
  void DirectPanels(int64_t begin, int64_t end) {
    const RowBlock x = BlockAt(0, MR, 0);
    alignas(64) float tile[MR * P * kR];
    for (; begin + P <= end; begin += P) {
      const std::byte* next = begin + P < end ? Panel(begin + P) : nullptr;
      Ops::template Direct<MR, P>(x, Panel(begin), panel_bytes_, k_, next, tile);
      for (int64_t p = 0; p < P; ++p) {
        Store(tile + p * kR, P * kR, 0, MR, begin + p);
      }
    }
    if constexpr (P > 1) {
      if (begin < end) DirectPanels<MR, P / 2>(begin, end);
    }
  }

  // Finishes the tile of `rows` rows from `row` and panel p, and writes it out.
  void Store(float* tile, int64_t ld, int64_t row, int64_t rows, int64_t p) {
    for (int64_t r = 0; r < rows; ++r) {
      const float* scale = scales() + row + r;
      Ops::Finish(tile + r * ld, scale, sums() + row + r, Panel(p), k_);
      StoreRow(args_, row + r, p * kR, tile + r * ld, Min(kR, n_ - p * kR));
    }
  }

  void RunDirect() {
    // Few items a thread, so that a slow core takes fewer; each whole sets of panels.
    const int64_t items = Max(1, Min(num_panels_ / 4, pool_.num_threads() * 8));
    const int64_t chunk = CeilDiv(CeilDiv(num_panels_, items), 4) * 4;
    pool_.ParallelFor(CeilDiv(num_panels_, chunk), [&](int64_t i, int) {
      const int64_t begin = i * chunk;
      const int64_t end = Min(num_panels_, begin + chunk);
      WithRows<Ops::kDirectRows>(m_, [&](auto rows) {
        constexpr int MR = decltype(rows)::value;
        DirectPanels<MR, MR == 1 ? 4 : MR == 2 ? 2 : 1>(begin, end);
      });
    });
  }

  void RunBlocked() {
    const int64_t chunk = Max(1, Min(kMaxChunkPanels, num_panels_ / (pool_.num_threads() * 4)));
    pool_.ParallelFor(CeilDiv(num_panels_, chunk), [&](int64_t i, int thread) {
      const int64_t begin = i * chunk;
      const int64_t end = Min(num_panels_, begin + chunk);
      for (int64_t row = 0; row < m_; row += kRowTile) {
        BlockedTile(row, Min(m_, row + kRowTile), begin, end, thread);
      }
    });
  }

  void BlockedTile(int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end,
                   int thread) {
    std::byte* slice_memory = scratch_ + layout_.threads_at + thread * layout_.thread_bytes;
    float* tile = reinterpret_cast<float*>(slice_memory + kSliceBytes);
    const int64_t tile_rows = row_end - row_begin;
    for (int64_t k = 0; k < k_; k += Ops::kDepthTile) {
      const int64_t k_count = Min(Ops::kDepthTile, k_ - k);
      for (int64_t p = panel_begin; p < panel_end; ++p) {
        const std::byte* slice = Ops::Slice(Panel(p) + Ops::SliceAt(k), k_count, slice_memory);
        const std::byte* next = nullptr;
        if (p + 1 < panel_end) {
          next = Panel(p + 1) + Ops::SliceAt(k);
        } else if (k + k_count < k_) {
          next = Panel(panel_begin) + Ops::SliceAt(k + k_count);
        }
        float* panel_tile = tile + (p - panel_begin) * tile_rows * kR;
        for (int64_t row = row_begin; row < row_end; row += Ops::kBlockRows) {
          WithRows<Ops::kBlockRows>(Min(Ops::kBlockRows, row_end - row), [&](auto rows) {
            constexpr int MR = decltype(rows)::value;
            Ops::template Block<MR>(BlockAt(row, MR, k), slice, k_count, k == 0,
                                    row == row_begin ? next : nullptr,
                                    panel_tile + (row - row_begin) * kR);
          });
        }
      }
    }
    for (int64_t p = panel_begin; p < panel_end; ++p) {
      Store(tile + (p - panel_begin) * tile_rows * kR, kR, row_begin, tile_rows, p);
    }
  }

  const GemmArgs& args_;
  ThreadPool& pool_;
  const int64_t m_, n_, k_;
  const int64_t num_panels_;
  const int64_t panel_bytes_;
  const int64_t groups_;  // scales of a row
  const GemmScratchLayout layout_;
  std::byte* const scratch_;
};

}  // namespace quire::QUIRE_ISA

#endif  // QUIRE_KERNELS_GEMM_GEMM_DRIVER_H_
