// Where each weight lies in a packed matrix: the one definition of the packed orders.
//
// A matrix is a run of panels; a panel holds R output rows ("columns" of the kernels): 16 for
// portable and AVX2, 32 for AVX-512. The rows that pad the last panel are zeros. In a panel, k
// ascends linearly, with what the k of a group needs (scales) beside it, so one panel is one
// linear stream. `c` is the row in the panel, `Lane(c)` = 2c for c < 8, else 2(c - 8) + 1.
//
//   form          R = 16 (portable, AVX2)              R = 32 (AVX-512)
//   kF32          F32 [k][16]                          F32 [k][32]
//   kBf16         BF16 [k][Lane(c)]                    BF16 [k/2][32][2]
//   kInt8Channel  s8 [k/2][16][2], F32 scale[16]       u8 [k/4][32][4] (code ^ 0x80), F32 scale[32]
//   kInt8Group32  {s8 [16][16][2], F16 scale[16]} ...  {u8 [8][32][4] (code ^ 0x80), F16 [32]} ...
//   kInt4Group32  {[4][c/8][c%8][4] nibbles, F16}      {[c/16][4][c%16][4] nibbles, F16 [32]}
//   ...Min        the same, then F16 min[R]
//   kFp8Block128  {F32 scale[16], [64][Lane(c)][2]}    {F32 scale[32], [64][32][2]}
//
// The low nibble of step q (of 4) is k = 4q + i, the high one k = 16 + 4q + i of the group.
// Lane order lets AVX2 widen 16 BF16 by a shift (rows 0-7) and a mask (rows 8-15).
#ifndef QUIRE_KERNELS_GEMM_PANEL_LAYOUT_H_
#define QUIRE_KERNELS_GEMM_PANEL_LAYOUT_H_

#include <cstdint>
#include <type_traits>

#include "kernels/gemm/gemm.h"

namespace quire {

constexpr int64_t kGroup = 32;      // k of one scale in the group forms
constexpr int64_t kFp8Block = 128;  // k (and rows) of one scale in kFp8Block128

template <WeightForm form, bool wide>
struct PanelLayout {
  static constexpr WeightForm kForm = form;
  static constexpr bool kWide = wide;  // AVX-512
  static constexpr int64_t kRows = wide ? 32 : 16;
  static constexpr bool kIsInt4 =
      form == WeightForm::kInt4Group32 || form == WeightForm::kInt4Group32Min;
  static constexpr bool kHasMin = form == WeightForm::kInt4Group32Min;
  static constexpr int64_t kGroupBytes = kIsInt4 ? kRows * (kHasMin ? 20 : 18) : kRows * 34;
  static constexpr int64_t kFp8BlockBytes = kRows * (kFp8Block + 4);

  static constexpr int64_t PanelBytes(int64_t k) {
    switch (form) {
      case WeightForm::kF32:
        return kRows * k * 4;
      case WeightForm::kBf16:
        return kRows * k * 2;
      case WeightForm::kInt8Channel:
        return kRows * (k + 4);
      case WeightForm::kFp8Block128:
        return kRows * (k + 4 * ((k + kFp8Block - 1) / kFp8Block));
      default:
        return k / kGroup * kGroupBytes;
    }
  }

  static constexpr int64_t Lane(int64_t c) { return c < 8 ? 2 * c : 2 * (c - 8) + 1; }

  // Byte offset in the panel of the value of (row c, k). Int4: of its byte; see HighNibble.
  static constexpr int64_t ValueAt(int64_t c, int64_t k) {
    const int64_t in_group = k % kGroup;
    switch (form) {
      case WeightForm::kF32:
        return (k * kRows + c) * 4;
      case WeightForm::kBf16:
        return wide ? (k / 2 * kRows + c) * 4 + k % 2 * 2 : (k * kRows + Lane(c)) * 2;
      case WeightForm::kInt8Channel:
        return Int8At(c, k);
      case WeightForm::kInt8Group32:
        return k / kGroup * kGroupBytes + Int8At(c, in_group);
      case WeightForm::kFp8Block128: {
        const int64_t in_block = k % kFp8Block;
        return k / kFp8Block * kFp8BlockBytes + 4 * kRows +
               (in_block / 2 * kRows + (wide ? c : Lane(c))) * 2 + in_block % 2;
      }
      default: {
        const int64_t step = in_group / 4 % 4;
        const int64_t line = wide ? c / 16 * 4 + step : step * 2 + c / 8;
        const int64_t width = wide ? 16 : 8;
        return k / kGroup * kGroupBytes + (line * width + c % width) * 4 + k % 4;
      }
    }
  }
  static constexpr bool HighNibble(int64_t k) { return k % kGroup >= 16; }

  // Byte offset of the scale of (row c, k). `k_total` is the panel's depth. Not for kF32, kBf16.
  static constexpr int64_t ScaleAt(int64_t c, int64_t k, int64_t k_total) {
    switch (form) {
      case WeightForm::kInt8Channel:
        return kRows * k_total + 4 * c;
      case WeightForm::kFp8Block128:
        return k / kFp8Block * kFp8BlockBytes + 4 * c;
      default:
        return k / kGroup * kGroupBytes + (kIsInt4 ? 16 : 32) * kRows + 2 * c;
    }
  }
  static constexpr int64_t MinAt(int64_t c, int64_t k) {
    return k / kGroup * kGroupBytes + 18 * kRows + 2 * c;
  }

 private:
  static constexpr int64_t Int8At(int64_t c, int64_t k) {
    return wide ? (k / 4 * kRows + c) * 4 + k % 4 : (k / 2 * kRows + c) * 2 + k % 2;
  }
};

// Calls fn(PanelLayout<form, wide>{}) for the values at hand.
template <class Fn>
auto WithPanelLayout(WeightForm form, Isa isa, Fn fn) {
  const auto with_form = [&]<WeightForm f>(std::integral_constant<WeightForm, f>) {
    return isa == Isa::kAvx512 ? fn(PanelLayout<f, true>{}) : fn(PanelLayout<f, false>{});
  };
  using enum WeightForm;
  switch (form) {
    case kF32:
      return with_form(std::integral_constant<WeightForm, kF32>{});
    case kBf16:
      return with_form(std::integral_constant<WeightForm, kBf16>{});
    case kInt8Channel:
      return with_form(std::integral_constant<WeightForm, kInt8Channel>{});
    case kInt8Group32:
      return with_form(std::integral_constant<WeightForm, kInt8Group32>{});
    case kInt4Group32:
      return with_form(std::integral_constant<WeightForm, kInt4Group32>{});
    case kInt4Group32Min:
      return with_form(std::integral_constant<WeightForm, kInt4Group32Min>{});
    case kFp8Block128:
      break;
  }
  return with_form(std::integral_constant<WeightForm, kFp8Block128>{});
}

}  // namespace quire

#endif  // QUIRE_KERNELS_GEMM_PANEL_LAYOUT_H_
