// Packing canonical rows into panels, and reading one row back.
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/fp.h"
#include "common/status_macros.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/panel_layout.h"

namespace quire {
namespace {

template <class T>
T LoadAs(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <class T>
void StoreAs(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

template <class Layout>
void PackRow(std::byte* panel, int64_t c, int64_t k_total, const WeightRows& rows, int64_t r) {
  using enum WeightForm;
  constexpr WeightForm form = Layout::kForm;
  const auto* bytes = static_cast<const uint8_t*>(rows.values);
  const int64_t groups = k_total / kGroup;
  if constexpr (form == kF32) {
    const float* from = static_cast<const float*>(rows.values) + r * k_total;
    for (int64_t k = 0; k < k_total; ++k) StoreAs(panel + Layout::ValueAt(c, k), from[k]);
  } else if constexpr (form == kBf16) {
    const uint16_t* from = static_cast<const uint16_t*>(rows.values) + r * k_total;
    for (int64_t k = 0; k < k_total; ++k) StoreAs(panel + Layout::ValueAt(c, k), from[k]);
  } else if constexpr (form == kInt8Channel || form == kInt8Group32) {
    constexpr uint8_t flip = Layout::kWide ? 0x80 : 0;
    const uint8_t* from = bytes + r * k_total;
    for (int64_t k = 0; k < k_total; ++k) {
      StoreAs(panel + Layout::ValueAt(c, k), static_cast<uint8_t>(from[k] ^ flip));
    }
  } else if constexpr (form == kFp8Block128) {
    const uint8_t* from = bytes + r * k_total;
    for (int64_t k = 0; k < k_total; ++k) StoreAs(panel + Layout::ValueAt(c, k), from[k]);
  } else {
    const uint8_t* from = bytes + r * k_total / 2;
    for (int64_t k = 0; k < k_total; ++k) {
      const uint8_t code = (from[k / 2] >> (k % 2 * 4)) & 15;
      std::byte& to = panel[Layout::ValueAt(c, k)];
      to = Layout::HighNibble(k) ? (to & std::byte{0x0f}) | std::byte(code << 4)
                                 : (to & std::byte{0xf0}) | std::byte(code);
    }
  }

  if constexpr (form == kInt8Channel) {
    StoreAs(panel + Layout::ScaleAt(c, 0, k_total), static_cast<const float*>(rows.scales)[r]);
  } else if constexpr (form == kFp8Block128) {
    for (int64_t k = 0; k < k_total; k += kFp8Block) {
      StoreAs(panel + Layout::ScaleAt(c, k, k_total),
              static_cast<const float*>(rows.scales)[k / kFp8Block]);
    }
  } else if constexpr (form != kF32 && form != kBf16) {
    const uint16_t* scales = static_cast<const uint16_t*>(rows.scales) + r * groups;
    for (int64_t g = 0; g < groups; ++g) {
      StoreAs(panel + Layout::ScaleAt(c, g * kGroup, k_total), scales[g]);
      if constexpr (Layout::kHasMin) {
        StoreAs(panel + Layout::MinAt(c, g * kGroup),
                static_cast<const uint16_t*>(rows.mins)[r * groups + g]);
      }
    }
  }
}

// Rows of padding in the last panel: zeros, but "zero" of a flipped code is 0x80 (its scale is 0
// all the same, and nobody reads these outputs).
template <class Layout>
void DequantizePanelRow(const std::byte* panel, int64_t c, int64_t k_total, float* out) {
  using enum WeightForm;
  constexpr WeightForm form = Layout::kForm;
  if constexpr (form == kF32) {
    for (int64_t k = 0; k < k_total; ++k) out[k] = LoadAs<float>(panel + Layout::ValueAt(c, k));
  } else if constexpr (form == kBf16) {
    for (int64_t k = 0; k < k_total; ++k) {
      out[k] = Bf16ToF32(LoadAs<uint16_t>(panel + Layout::ValueAt(c, k)));
    }
  } else if constexpr (form == kInt8Channel || form == kInt8Group32) {
    constexpr uint8_t flip = Layout::kWide ? 0x80 : 0;
    constexpr int64_t run = form == kInt8Channel ? 16 : kGroup;
    for (int64_t begin = 0; begin < k_total; begin += run) {
      const std::byte* at = panel + Layout::ScaleAt(c, begin, k_total);
      const float scale = form == kInt8Channel ? LoadAs<float>(at) : F16ToF32(LoadAs<uint16_t>(at));
      for (int64_t k = begin; k < begin + run; ++k) {
        const auto code =
            static_cast<int8_t>(LoadAs<uint8_t>(panel + Layout::ValueAt(c, k)) ^ flip);
        out[k] = static_cast<float>(code) * scale;
      }
    }
  } else if constexpr (form == kFp8Block128) {
    for (int64_t k = 0; k < k_total; ++k) {
      // Exponent and mantissa in F32's place give value * 2^-120, subnormals included.
      const auto code = LoadAs<uint8_t>(panel + Layout::ValueAt(c, k));
      const uint32_t bits = (code & 0x80u) << 24 | (code & 0x7fu) << 20;
      out[k] = std::bit_cast<float>(bits) * 0x1p120f *
               LoadAs<float>(panel + Layout::ScaleAt(c, k, k_total));
    }
  } else {
    for (int64_t begin = 0; begin < k_total; begin += kGroup) {
      const float scale = F16ToF32(LoadAs<uint16_t>(panel + Layout::ScaleAt(c, begin, k_total)));
      const float min =
          Layout::kHasMin ? F16ToF32(LoadAs<uint16_t>(panel + Layout::MinAt(c, begin))) : 0.0f;
      for (int64_t k = begin; k < begin + kGroup; ++k) {
        const auto byte = LoadAs<uint8_t>(panel + Layout::ValueAt(c, k));
        const int code = Layout::HighNibble(k) ? byte >> 4 : byte & 15;
        out[k] = Layout::kHasMin ? static_cast<float>(code) * scale + min
                                 : static_cast<float>(code - 8) * scale;
      }
    }
  }
}

// Kernels decode e4m3 arithmetically, where a NaN code would read as 480: refused here instead.
absl::Status RefuseNan(const WeightRows& rows, int64_t row_begin) {
  const auto* codes = static_cast<const uint8_t*>(rows.values);
  for (int64_t i = 0; i < rows.num_rows * rows.k; ++i) {
    if ((codes[i] & 0x7f) == 0x7f) {
      return absl::InvalidArgumentError(absl::StrCat("e4m3 weight at row ", row_begin + i / rows.k,
                                                     ", k ", i % rows.k, " is NaN"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PackRows(const PackedMatrix& matrix, int64_t row_begin, const WeightRows& rows) {
  if (rows.form != matrix.form) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rows are ", WeightFormName(rows.form), ", the matrix is ", WeightFormName(matrix.form)));
  }
  if (rows.k != matrix.k) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows have k ", rows.k, ", the matrix has ", matrix.k));
  }
  if (row_begin < 0 || rows.num_rows < 0 || row_begin + rows.num_rows > matrix.n) {
    return absl::InvalidArgumentError(absl::StrCat("rows [", row_begin, ", ",
                                                   row_begin + rows.num_rows,
                                                   ") leave the matrix, which has ", matrix.n));
  }
  RETURN_IF_ERROR(ValidatePackedShape(matrix.form, matrix.n, matrix.k));
  QUIRE_CHECK(matrix.data != nullptr);
  if (rows.num_rows == 0) return absl::OkStatus();
  const bool needs_scales = rows.form != WeightForm::kF32 && rows.form != WeightForm::kBf16;
  if (rows.values == nullptr || (needs_scales && rows.scales == nullptr) ||
      (rows.form == WeightForm::kInt4Group32Min && rows.mins == nullptr)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows of form ", WeightFormName(rows.form), " lack values, scales or mins"));
  }
  if (rows.form == WeightForm::kFp8Block128) RETURN_IF_ERROR(RefuseNan(rows, row_begin));
  WithPanelLayout(matrix.form, matrix.isa, [&]<class Layout>(Layout) {
    const int64_t panel_bytes = Layout::PanelBytes(matrix.k);
    for (int64_t r = 0; r < rows.num_rows; ++r) {
      const int64_t row = row_begin + r;
      PackRow<Layout>(matrix.data + row / Layout::kRows * panel_bytes, row % Layout::kRows,
                      matrix.k, rows, r);
    }
  });
  return absl::OkStatus();
}

void DequantizeRow(const PackedMatrix& matrix, int64_t row, float* out) {
  QUIRE_CHECK(row >= 0 && row < matrix.n);
  WithPanelLayout(matrix.form, matrix.isa, [&]<class Layout>(Layout) {
    DequantizePanelRow<Layout>(matrix.data + row / Layout::kRows * Layout::PanelBytes(matrix.k),
                               row % Layout::kRows, matrix.k, out);
  });
}

}  // namespace quire
