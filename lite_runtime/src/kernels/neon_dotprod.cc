// NEON with the dot product instructions of ARMv8.2: sdot adds four products of bytes per 32-bit lane, and takes
// one quad of activations for all of its lanes. So a register of four outputs by four inputs is multiplied as
// it lies in the file, and lanes are outputs.
#if defined(__aarch64__)

#include "paths.h"
#include "tiles_neon.h"

namespace edge_kit {
namespace {

// Quad kQuad of the four in each of x [R], by the 4 * Q outputs at `weights`.
template <int kQuad, int R, int Q>
EDGE_KIT_INLINE void add_quad(const int8_t* weights, const int8x16_t* x, int32x4_t (&dot)[R][Q]) {
  EDGE_KIT_UNROLL for (int i = 0; i < Q; ++i) {
    const int8x16_t quad = vld1q_s8(weights + kQuad * kQuadBytes + i * 16);
    EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) dot[r][i] = vdotq_laneq_s32(dot[r][i], quad, x[r], kQuad);
  }
}

// R rows from `row` on by 4 * Q outputs of the tile, from `output` on.
template <int R, int Q>
void multiply_outputs(Panel& panel, int64_t row, int64_t output) {
  const int64_t groups = panel.x.groups, row_bytes = groups * kGroup;
  const int8_t* weights = panel.weights + output * kTileK;
  const int8_t* values = panel.values(row);
  const float* scale = panel.scale(row);
  float* running = panel.running(row) + output;
  float32x4_t sums[R][Q];
  EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
    EDGE_KIT_UNROLL for (int i = 0; i < Q; ++i) sums[r][i] = vld1q_f32(running + r * kTileN + i * 4);
  }
  for (int64_t g = panel.g; g < panel.g_end; ++g, weights += kGroupBytes, values += kGroup, ++scale) {
    if (output == 0) panel.prefetch_next();
    int32x4_t dot[R][Q];
    EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
      EDGE_KIT_UNROLL for (int i = 0; i < Q; ++i) dot[r][i] = vdupq_n_s32(kStartBits);
    }
    EDGE_KIT_UNROLL for (int64_t k = 0; k < kGroup; k += 16) {
      int8x16_t x[R];
      EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) x[r] = vld1q_s8(values + r * row_bytes + k);
      add_quad<0, R, Q>(weights + k * kTileN, x, dot);
      add_quad<1, R, Q>(weights + k * kTileN, x, dot);
      add_quad<2, R, Q>(weights + k * kTileN, x, dot);
      add_quad<3, R, Q>(weights + k * kTileN, x, dot);
    }
    EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
      EDGE_KIT_UNROLL for (int i = 0; i < Q; ++i) {
        sums[r][i] = vfmaq_n_f32(sums[r][i], dot_to_float(dot[r][i]), scale[r * groups]);
      }
    }
  }
  EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
    EDGE_KIT_UNROLL for (int i = 0; i < Q; ++i) vst1q_f32(running + r * kTileN + i * 4, sums[r][i]);
  }
}

struct Block {
  static constexpr int kRows = 4;

  // Dot products and running sums of two rows by a tile fit the registers, or of four rows by half of one.
  template <int R>
  static void multiply(Panel& panel, int64_t row) {
    constexpr int kRegisters = R <= 2 ? 4 : 2;
    for (int64_t output = 0; output < kTileN; output += kRegisters * 4) {
      multiply_outputs<R, kRegisters>(panel, row, output);
    }
  }
};

}  // namespace

void linear_int8_neon_dotprod(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride,
                              int64_t n_begin, int64_t n_end) {
  if (w.layout == WeightLayout::kRows) return kNeonKernels.linear_int8(w, x, y, y_stride, n_begin, n_end);
  linear_tiles<Block::kRows>(w, x, y, y_stride, n_begin, n_end,
                             [](Panel& panel) { multiply_rows<Block, Block::kRows>(panel, panel.first); });
}

}  // namespace edge_kit

#endif  // __aarch64__
