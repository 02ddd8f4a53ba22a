// NEON with the matrix instructions of ARMv8.6: smmla multiplies two rows by two outputs, eight inputs each.
// A panel's weights are reordered once for all rows that meet it, its rows once for the tiles that are taken
// together; the sums stay pairs by pairs up to a tile's last panel. A few rows are bound by memory and take
// the dot products.
#if defined(__aarch64__)

#include "paths.h"
#include "tiles_neon.h"

namespace edge_kit {
namespace {

constexpr int kRows = 4;         // per register block,
constexpr int64_t kOutputs = 8;  // by so many outputs
constexpr int kTiles = 4;        // for which rows are reordered once
constexpr int64_t kPanelInputs = kPanelGroups * kGroup;

// Each half [inputs / 8, 4, 2 outputs, 8 inputs].
using PackedPanel = int8_t[kTileN / kOutputs][kPanelInputs * kOutputs];
struct PairedRows {
  int8_t values[kRangeRows / 2][kPanelInputs * 2];  // each [inputs / 8, 2 rows, 8 inputs]
  float scale[kRangeRows / 2][kPanelGroups][4];     // each [2 rows, 2 outputs]
};

void pack_panel(const int8_t* weights, int64_t groups, PackedPanel& packed) {
  for (int64_t q = 0; q < groups * kQuads; q += 2, weights += 2 * kQuadBytes) {
    EDGE_KIT_UNROLL for (int i = 0; i < 4; ++i) {  // outputs 4 i to 4 i + 3
      const int32x4_t quad = vreinterpretq_s32_s8(vld1q_s8(weights + i * 16));
      const int32x4_t following = vreinterpretq_s32_s8(vld1q_s8(weights + kQuadBytes + i * 16));
      int8_t* to = packed[i / 2] + q * kTileK * kOutputs + i % 2 * 32;
      vst1q_s8(to, vreinterpretq_s8_s32(vzip1q_s32(quad, following)));
      vst1q_s8(to + 16, vreinterpretq_s8_s32(vzip2q_s32(quad, following)));
    }
  }
}

// A last row without a partner is its own.
void pair_rows(const Panel& panel, PairedRows& paired) {
  for (int64_t row = panel.first; row < panel.last; row += 2) {
    const int64_t pair = (row - panel.first) / 2, partner = smaller(row + 1, panel.last - 1);
    const int8_t *a = panel.values(row), *b = panel.values(partner);
    int8_t* to = paired.values[pair];
    for (int64_t k = 0; k < (panel.g_end - panel.g) * kGroup; k += 16) {
      const int64x2_t first = vreinterpretq_s64_s8(vld1q_s8(a + k));
      const int64x2_t second = vreinterpretq_s64_s8(vld1q_s8(b + k));
      vst1q_s8(to + 2 * k, vreinterpretq_s8_s64(vzip1q_s64(first, second)));
      vst1q_s8(to + 2 * k + 16, vreinterpretq_s8_s64(vzip2q_s64(first, second)));
    }
    for (int64_t g = 0; g < panel.g_end - panel.g; ++g) {
      const float32x2_t first = vdup_n_f32(panel.scale(row)[g]), second = vdup_n_f32(panel.scale(partner)[g]);
      vst1q_f32(paired.scale[pair][g], vcombine_f32(first, second));
    }
  }
}

// [a0 a1 a2 a3], [b0 b1 b2 b3] -> [a0 a1 b0 b1], [a2 a3 b2 b3], and back.
void exchange_halves(float32x4_t* a, float32x4_t* b) {
  const float32x4_t first = vcombine_f32(vget_low_f32(*a), vget_low_f32(*b));
  *b = vcombine_f32(vget_high_f32(*a), vget_high_f32(*b));
  *a = first;
}

// P pairs of rows from `row` on by the eight outputs from `output` on.
template <int P>
void multiply_pairs(Panel& panel, const PairedRows& paired, const int8_t* weights, int64_t row,
                    int64_t output) {
  const int8_t* pairs = paired.values[(row - panel.first) / 2];
  const float(*scale)[4] = paired.scale[(row - panel.first) / 2];
  float* running = panel.running(row) + output;
  float32x4_t sums[P][4];  // of two rows by two outputs each
  EDGE_KIT_UNROLL for (int p = 0; p < P; ++p) {
    EDGE_KIT_UNROLL for (int i = 0; i < 4; ++i) {
      sums[p][i] = vld1q_f32(running + (2 * p + i % 2) * kTileN + i / 2 * 4);
    }
  }
  for (int64_t g = panel.g; g < panel.g_end; ++g, ++scale) {
    if (output == 0) panel.prefetch_next();
    int32x4_t dot[P][4];
    EDGE_KIT_UNROLL for (int p = 0; p < P; ++p) {
      EDGE_KIT_UNROLL for (int i = 0; i < 4; ++i) dot[p][i] = vdupq_n_s32(kStartBits);
    }
    EDGE_KIT_UNROLL for (int64_t k = 0; k < kGroup; k += 8) {
      const int8x16x4_t outputs = vld1q_s8_x4(weights + k * kOutputs);
      EDGE_KIT_UNROLL for (int p = 0; p < P; ++p) {
        const int8x16_t pair = vld1q_s8(pairs + p * kPanelInputs * 2 + k * 2);
        EDGE_KIT_UNROLL for (int i = 0; i < 4; ++i) dot[p][i] = vmmlaq_s32(dot[p][i], pair, outputs.val[i]);
      }
    }
    EDGE_KIT_UNROLL for (int p = 0; p < P; ++p) {
      const float32x4_t pair_scale = vld1q_f32(scale[p * kPanelGroups]);
      EDGE_KIT_UNROLL for (int i = 0; i < 4; ++i) {
        sums[p][i] = vfmaq_f32(sums[p][i], pair_scale, dot_to_float(dot[p][i]));
      }
    }
    weights += kGroup * kOutputs;
    pairs += kGroup * 2;
  }
  EDGE_KIT_UNROLL for (int p = 0; p < P; ++p) {
    if (panel.g_end == panel.x.groups) {  // row by row again
      exchange_halves(&sums[p][0], &sums[p][1]);
      exchange_halves(&sums[p][2], &sums[p][3]);
    }
    EDGE_KIT_UNROLL for (int i = 0; i < 4; ++i) {
      vst1q_f32(running + (2 * p + i % 2) * kTileN + i / 2 * 4, sums[p][i]);
    }
  }
}

void multiply_panel(Panel& panel, const PairedRows& paired) {
  alignas(64) PackedPanel packed;
  pack_panel(panel.weights, panel.g_end - panel.g, packed);
  for (int64_t row = panel.first; row < panel.last; row += kRows) {
    for (int64_t output = 0; output < kTileN; output += kOutputs) {
      const int8_t* weights = packed[output / kOutputs];
      if (panel.last - row > 2) {
        multiply_pairs<2>(panel, paired, weights, row, output);
      } else {
        multiply_pairs<1>(panel, paired, weights, row, output);
      }
    }
  }
}

}  // namespace

void linear_int8_neon_i8mm(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride, int64_t n_begin,
                           int64_t n_end) {
  if (w.layout == WeightLayout::kRows || x.rows <= kStreamedRows) {
    return linear_int8_neon_dotprod(w, x, y, y_stride, n_begin, n_end);
  }
  alignas(64) PairedRows paired;
  const auto begin = [&](Panel& panel) { pair_rows(panel, paired); };
  const auto multiply = [&](Panel& panel) { multiply_panel(panel, paired); };
  linear_tiles<kRows, kTiles>(w, x, y, y_stride, n_begin, n_end, begin, multiply);
}

}  // namespace edge_kit

#endif  // __aarch64__
