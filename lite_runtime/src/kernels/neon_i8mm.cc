// NEON with the matrix instructions of ARMv8.6: smmla multiplies two rows by two outputs, eight inputs each. A
// panel's weights are reordered once for all rows that meet it, a pair of rows as it is loaded; the sums stay
// pairs by pairs until the panel ends. A few rows are bound by memory and take the dot products.
#if defined(__aarch64__)

#include "paths.h"
#include "tiles_neon.h"

namespace edge_kit {
namespace {

constexpr int kRows = 4;                                    // per register block,
constexpr int64_t kOutputs = 8;                             // by so many outputs
constexpr int64_t kHalfPanel = kPanelGroups * kGroup * kOutputs;

using PackedPanel = int8_t[kTileN / kOutputs][kHalfPanel];  // each half [inputs / 8, 4, 2 outputs, 8 inputs]

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

int8x16_t first_halves(int8x16_t a, int8x16_t b) {
  return vreinterpretq_s8_s64(vzip1q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}
int8x16_t second_halves(int8x16_t a, int8x16_t b) {
  return vreinterpretq_s8_s64(vzip2q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}
// [a0 a1 a2 a3], [b0 b1 b2 b3] -> [a0 a1 b0 b1], [a2 a3 b2 b3], and back.
void exchange_halves(float32x4_t* a, float32x4_t* b) {
  const float32x4_t first = vcombine_f32(vget_low_f32(*a), vget_low_f32(*b));
  *b = vcombine_f32(vget_high_f32(*a), vget_high_f32(*b));
  *a = first;
}

// P pairs of rows from `row` on by the eight outputs from `output` on. Past the panel's last row that one is
// taken again, with the same result.
template <int P>
void multiply_pairs(Panel& panel, const int8_t* weights, int64_t row, int64_t output) {
  const int8_t* values[2 * P];
  const float* scale[2 * P];
  float* running[2 * P];
  EDGE_KIT_UNROLL for (int r = 0; r < 2 * P; ++r) {
    const int64_t at = smaller(row + r, panel.last - 1);
    values[r] = panel.values(at);
    scale[r] = panel.scale(at);
    running[r] = panel.running(at) + output;
  }
  float32x4_t sums[P][4];  // of two rows by two outputs each
  EDGE_KIT_UNROLL for (int p = 0; p < P; ++p) {
    EDGE_KIT_UNROLL for (int i = 0; i < 4; ++i) sums[p][i] = vld1q_f32(running[2 * p + i % 2] + i / 2 * 4);
    exchange_halves(&sums[p][0], &sums[p][1]);
    exchange_halves(&sums[p][2], &sums[p][3]);
  }
  for (int64_t g = 0; g < panel.g_end - panel.g; ++g, weights += kGroup * kOutputs) {
    if (output == 0) panel.prefetch_next();
    int32x4_t dot[P][4];
    EDGE_KIT_UNROLL for (int p = 0; p < P; ++p) {
      EDGE_KIT_UNROLL for (int i = 0; i < 4; ++i) dot[p][i] = vdupq_n_s32(kStartBits);
    }
    EDGE_KIT_UNROLL for (int64_t k = 0; k < kGroup; k += 16) {
      int8x16_t pair[P][2];
      EDGE_KIT_UNROLL for (int p = 0; p < P; ++p) {
        const int8x16_t a = vld1q_s8(values[2 * p] + g * kGroup + k);
        const int8x16_t b = vld1q_s8(values[2 * p + 1] + g * kGroup + k);
        pair[p][0] = first_halves(a, b);
        pair[p][1] = second_halves(a, b);
      }
      EDGE_KIT_UNROLL for (int half = 0; half < 2; ++half) {
        const int8x16x4_t outputs = vld1q_s8_x4(weights + (k + half * 8) * kOutputs);
        EDGE_KIT_UNROLL for (int p = 0; p < P; ++p) {
          EDGE_KIT_UNROLL for (int i = 0; i < 4; ++i) {
            dot[p][i] = vmmlaq_s32(dot[p][i], pair[p][half], outputs.val[i]);
          }
        }
      }
    }
    EDGE_KIT_UNROLL for (int p = 0; p < P; ++p) {
      const float32x4_t pair_scale = vcombine_f32(vdup_n_f32(scale[2 * p][g]), vdup_n_f32(scale[2 * p + 1][g]));
      EDGE_KIT_UNROLL for (int i = 0; i < 4; ++i) {
        sums[p][i] = vfmaq_f32(sums[p][i], pair_scale, dot_to_float(dot[p][i]));
      }
    }
  }
  EDGE_KIT_UNROLL for (int p = 0; p < P; ++p) {
    exchange_halves(&sums[p][0], &sums[p][1]);
    exchange_halves(&sums[p][2], &sums[p][3]);
    EDGE_KIT_UNROLL for (int i = 0; i < 4; ++i) vst1q_f32(running[2 * p + i % 2] + i / 2 * 4, sums[p][i]);
  }
}

void multiply_panel(Panel& panel) {
  alignas(64) PackedPanel packed;
  pack_panel(panel.weights, panel.g_end - panel.g, packed);
  for (int64_t row = panel.first; row < panel.last; row += kRows) {
    for (int64_t output = 0; output < kTileN; output += kOutputs) {
      const int8_t* weights = packed[output / kOutputs];
      if (panel.last - row > 2) {
        multiply_pairs<2>(panel, weights, row, output);
      } else {
        multiply_pairs<1>(panel, weights, row, output);
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
  linear_tiles<kRows>(w, x, y, y_stride, n_begin, n_end, multiply_panel);
}

}  // namespace edge_kit

#endif  // __aarch64__
