// NEON as every 64-bit ARM CPU has it. Products of bytes are added in pairs at 16 bits, which hold them:
// 2 * 127 * 128 = 32512; pairs of lanes are then added in 32 bits, so an output has two lanes until its group
// ends.
#if defined(__aarch64__)

#include "lanes_neon.h"
// Kernels over `Lanes`, compiled here with this file's flags.
#include "attention.h"
#include "linear_float.h"
#include "paths.h"
#include "quantize_row.h"
#include "tiles_neon.h"

namespace edge_kit {
namespace {

// x [kGroup].
void quantize_group(const float* x, int8_t* values, float* scale, int32_t* offset) {
  uint32x4_t largest_bits = vdupq_n_u32(0);  // magnitudes order like their bits, NaN above infinity
  EDGE_KIT_UNROLL for (int64_t i = 0; i < kGroup; i += 4) {
    largest_bits = vmaxq_u32(largest_bits, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + i))));
  }
  const uint32_t bits = vmaxvq_u32(largest_bits);
  float largest;
  __builtin_memcpy(&largest, &bits, sizeof largest);
  const bool finite = bits < 0x7f800000;
  if (!finite || largest < 0x1p-120f) {
    __builtin_memset(values, 0, kGroup);
    *scale = finite ? 0.0f : __builtin_nanf("");
    *offset = 0;
    return;
  }
  const float inverse = 127.0f / largest;
  int32x4_t sums = vdupq_n_s32(0);
  EDGE_KIT_UNROLL for (int64_t i = 0; i < kGroup; i += 16) {
    int32x4_t whole[4];
    EDGE_KIT_UNROLL for (int j = 0; j < 4; ++j) {
      whole[j] = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i + j * 4), inverse));
      sums = vaddq_s32(sums, whole[j]);
    }
    const int16x8_t low = vmovn_high_s32(vmovn_s32(whole[0]), whole[1]);
    const int16x8_t high = vmovn_high_s32(vmovn_s32(whole[2]), whole[3]);
    vst1q_s8(values + i, vmovn_high_s16(vmovn_s16(low), high));
  }
  *offset = -128 * vaddvq_s32(sums);
  *scale = largest / 127.0f;
}

// Two of the four quads of activations in x, by as many of R rows' weights, at `weights`.
template <int kFirst, int R>
EDGE_KIT_INLINE void add_quads(const int8_t* weights, const int32x4_t* x, int32x4_t (&dot)[R][8]) {
  int8x16_t values[R][2];
  EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
    values[r][0] = vreinterpretq_s8_s32(vdupq_laneq_s32(x[r], kFirst));
    values[r][1] = vreinterpretq_s8_s32(vdupq_laneq_s32(x[r], kFirst + 1));
  }
  EDGE_KIT_UNROLL for (int i = 0; i < 4; ++i) {  // outputs 4 i to 4 i + 3
    const int8x16_t quad = vld1q_s8(weights + kFirst * kQuadBytes + i * 16);
    const int8x16_t following = vld1q_s8(weights + (kFirst + 1) * kQuadBytes + i * 16);
    EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
      int16x8_t low = vmull_s8(vget_low_s8(quad), vget_low_s8(values[r][0]));
      low = vmlal_s8(low, vget_low_s8(following), vget_low_s8(values[r][1]));
      const int16x8_t high = vmlal_high_s8(vmull_high_s8(quad, values[r][0]), following, values[r][1]);
      dot[r][2 * i] = vpadalq_s16(dot[r][2 * i], low);
      dot[r][2 * i + 1] = vpadalq_s16(dot[r][2 * i + 1], high);
      // Or Clang puts all these additions last, and finds no registers for what they wait for.
      __asm__("" : "+w"(dot[r][2 * i]), "+w"(dot[r][2 * i + 1]));
    }
  }
}

struct Block {
  static constexpr int kRows = 2;  // what fits the registers; the running sums do not

  template <int R>
  static void multiply(Panel& panel, int64_t row) {
    const int64_t groups = panel.x.groups, row_bytes = groups * kGroup;
    const int8_t* weights = panel.weights;
    const int8_t* values = panel.values(row);
    const float* scale = panel.scale(row);
    float* running = panel.running(row);
    const int32x4_t start = vreinterpretq_s32_s64(vdupq_n_s64(kStartBits));  // in the first of two lanes
    for (int64_t g = panel.g; g < panel.g_end; ++g, weights += kGroupBytes, values += kGroup, ++scale) {
      panel.prefetch_next();
      int32x4_t dot[R][8];
      EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
        EDGE_KIT_UNROLL for (int i = 0; i < 8; ++i) dot[r][i] = start;
      }
      EDGE_KIT_UNROLL for (int64_t k = 0; k < kGroup; k += 16) {
        int32x4_t x[R];
        EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
          x[r] = vreinterpretq_s32_s8(vld1q_s8(values + r * row_bytes + k));
        }
        add_quads<0, R>(weights + k * kTileN, x, dot);
        add_quads<2, R>(weights + k * kTileN, x, dot);
      }
      EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
        EDGE_KIT_UNROLL for (int i = 0; i < 4; ++i) {
          float* sum = running + r * kTileN + i * 4;
          const float32x4_t whole = dot_to_float(vpaddq_s32(dot[r][2 * i], dot[r][2 * i + 1]));
          vst1q_f32(sum, vfmaq_n_f32(vld1q_f32(sum), whole, scale[r * groups]));
        }
      }
    }
  }
};

// Products of kGroup inputs of one output, added lane by lane.
int32x4_t multiply_group(const int8_t* values, const int8_t* weights) {
  int32x4_t sums = vdupq_n_s32(0);
  EDGE_KIT_UNROLL for (int64_t k = 0; k < kGroup; k += 16) {
    const int8x16_t x = vld1q_s8(values + k), w = vld1q_s8(weights + k);
    sums = vpadalq_s16(sums, vmlal_high_s8(vmull_s8(vget_low_s8(x), vget_low_s8(w)), x, w));
  }
  return sums;
}

// Four outputs at a time, group by group: products along K, then summed so that lanes are outputs.
void linear_rows(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride, int64_t n_begin,
                 int64_t n_end) {
  constexpr int64_t kOutputs = 4;
  for (int64_t n = n_begin; n < n_end; n += kOutputs) {
    const int64_t count = smaller(kOutputs, n_end - n);
    for (int64_t r = 0; r < x.rows; ++r) {
      float32x4_t sums = vdupq_n_f32(0.0f);
      for (int64_t g = 0; g < x.groups; ++g) {
        const int64_t at = r * x.groups + g;
        int32x4_t dot[kOutputs] = {};
        for (int64_t i = 0; i < count; ++i) {
          const int8_t* weights = static_cast<const int8_t*>(w.data) + (n + i) * w.k + g * kGroup;
          int8_t tail[kGroup] = {};
          if ((g + 1) * kGroup > w.k) {
            __builtin_memcpy(tail, weights, static_cast<size_t>(w.k - g * kGroup));
            weights = tail;
          }
          dot[i] = multiply_group(x.values + at * kGroup, weights);
        }
        const int32x4_t outputs = vpaddq_s32(vpaddq_s32(dot[0], dot[1]), vpaddq_s32(dot[2], dot[3]));
        sums = vfmaq_n_f32(sums, vcvtq_f32_s32(outputs), x.scale[at]);
      }
      float out[kOutputs];
      vst1q_f32(out, sums);
      for (int64_t i = 0; i < count; ++i) {
        y[r * y_stride + n + i] = out[i] * w.scale[n + i] + (w.bias ? w.bias[n + i] : 0.0f);
      }
    }
  }
}

void linear_int8(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride, int64_t n_begin,
                 int64_t n_end) {
  if (w.layout == WeightLayout::kRows) return linear_rows(w, x, y, y_stride, n_begin, n_end);
  linear_tiles<Block>(w, x, y, y_stride, n_begin, n_end);
}

}  // namespace

const Kernels kNeonKernels = {
    "neon", quantize_row, linear_int8, linear_float, rms_norm, rope, silu_mul, add,
    attention<uint16_t, uint16_t>, attention<float, float>, attention<int8_t, uint16_t>, fold_partials,
    quantize_plane, to_f16, read_stream,
};

}  // namespace edge_kit

#endif  // __aarch64__
