// NEON with the dot product instructions of ARMv8.2: sdot adds four products of bytes per 32-bit lane, and takes
// one quad of activations for all of its lanes. So a register of four outputs by four inputs is multiplied as
// it lies in the file, and lanes are outputs.
#if defined(__aarch64__)

#include "paths.h"
#include "tiles_neon.h"

namespace edge_kit {
namespace {

// Quad kQuad of the four in each of x [R], by its 16 outputs in `weights`.
template <int kQuad, int R>
EDGE_KIT_INLINE void add_quad(const int8_t* weights, const int8x16_t* x, int32x4_t (&dot)[R][4]) {
  const int8x16x4_t quad = vld1q_s8_x4(weights + kQuad * kQuadBytes);
  EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
    EDGE_KIT_UNROLL for (int i = 0; i < 4; ++i) dot[r][i] = vdotq_laneq_s32(dot[r][i], quad.val[i], x[r], kQuad);
  }
}

struct Block {
  static constexpr int kRows = 4;  // their dot products fit the registers, and most of the running sums

  template <int R>
  static void multiply(Panel& panel, int64_t row) {
    const int64_t groups = panel.x.groups, row_bytes = groups * kGroup;
    const int8_t* weights = panel.weights;
    const int8_t* values = panel.values(row);
    const float* scale = panel.scale(row);
    float* running = panel.running(row);
    float32x4_t sums[R][4];
    EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
      EDGE_KIT_UNROLL for (int i = 0; i < 4; ++i) sums[r][i] = vld1q_f32(running + r * kTileN + i * 4);
    }
    for (int64_t g = panel.g; g < panel.g_end; ++g, weights += kGroupBytes, values += kGroup, ++scale) {
      panel.prefetch_next();
      int32x4_t dot[R][4];
      EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
        EDGE_KIT_UNROLL for (int i = 0; i < 4; ++i) dot[r][i] = vdupq_n_s32(kStartBits);
      }
      EDGE_KIT_UNROLL for (int64_t k = 0; k < kGroup; k += 16) {
        int8x16_t x[R];
        EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) x[r] = vld1q_s8(values + r * row_bytes + k);
        add_quad<0, R>(weights + k * kTileN, x, dot);
        add_quad<1, R>(weights + k * kTileN, x, dot);
        add_quad<2, R>(weights + k * kTileN, x, dot);
        add_quad<3, R>(weights + k * kTileN, x, dot);
      }
      EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
        EDGE_KIT_UNROLL for (int i = 0; i < 4; ++i) {
          sums[r][i] = vfmaq_n_f32(sums[r][i], dot_to_float(dot[r][i]), scale[r * groups]);
        }
      }
    }
    EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
      EDGE_KIT_UNROLL for (int i = 0; i < 4; ++i) vst1q_f32(running + r * kTileN + i * 4, sums[r][i]);
    }
  }
};

}  // namespace

void linear_int8_neon_dotprod(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride,
                              int64_t n_begin, int64_t n_end) {
  if (w.layout == WeightLayout::kRows) return kNeonKernels.linear_int8(w, x, y, y_stride, n_begin, n_end);
  linear_tiles<Block>(w, x, y, y_stride, n_begin, n_end);
}

}  // namespace edge_kit

#endif  // __aarch64__
