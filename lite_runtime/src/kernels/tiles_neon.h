// What the INT8 linear layers over weight tiles share on ARM: tile after tile is read in one stream, panel by
// panel, and each panel stays in L1 while a range of rows meets it.
#pragma once

#if !defined(__clang__)  // GCC 12 moves loads so far up that the sums no longer find registers
#pragma GCC optimize("no-schedule-insns")
#endif
#include <arm_neon.h>

#include "isa_common.h"
#include "kernels.h"

namespace edge_kit {
namespace {

constexpr int64_t kQuadBytes = kTileN * kTileK;   // 16 outputs by 4 inputs, in four registers
constexpr int64_t kQuads = kGroup / kTileK;       // per group
constexpr int64_t kGroupBytes = kGroup * kTileN;  // of one tile
constexpr int64_t kPanelGroups = 4;               // of one tile
constexpr int64_t kRangeRows = 64;                // whose activations stay in L2 while the tiles pass
constexpr int64_t kPrefetchStep = 512;            // bytes that are prefetched in one go

// A group's dot product starts at the bits of 1.5 * 2^23 instead of zero. With less than 2^22 added to them (a
// dot product is at most 2^20) they are, read as a float, 1.5 * 2^23 plus the dot product. One subtraction
// converts that exactly, and takes fewer cycles of small cores than a conversion.
constexpr float kStart = 0x1.8p23f;
constexpr int32_t kStartBits = 0x4b400000;

inline float32x4_t dot_to_float(int32x4_t dot) {
  return vsubq_f32(vreinterpretq_f32_s32(dot), vdupq_n_f32(kStart));
}

// Rows [first, last) by groups [g, g_end) of one weight tile.
struct Panel {
  const QuantizedRows& x;
  int64_t first, last;
  float (*sums)[kTileN];   // running sums, of row `first` on
  int64_t g, g_end;
  const int8_t* weights;   // [g_end - g, kQuads, 16, 4]
  const int8_t* next;      // what is read after them and has not been prefetched,
  const int8_t* next_end;  // up to here,
  int64_t next_bytes;      // in parts of so many bytes

  const int8_t* values(int64_t row) const { return x.values + (row * x.groups + g) * kGroup; }
  const float* scale(int64_t row) const { return x.scale + row * x.groups + g; }
  float* running(int64_t row) const { return sums[row - first]; }

  // To be called for every row block and group.
  void prefetch_next() {
    if (next >= next_end) return;
    for (int64_t i = 0; i < next_bytes; i += kPrefetchStep, next += kPrefetchStep) {
      EDGE_KIT_UNROLL for (int64_t line = 0; line < kPrefetchStep; line += 64) prefetch(next + line);
    }
  }
};

// Block::multiply<R>(panel, row) for all rows in blocks of R, for the rest in ever smaller ones.
template <typename Block, int R>
void multiply_rows(Panel& panel, int64_t row) {
  if constexpr (R > 0) {
    for (; row + R <= panel.last; row += R) Block::template multiply<R>(panel, row);
    multiply_rows<Block, R - 1>(panel, row);
  }
}

inline void store_outputs(const Weight& w, int64_t n, const float* sums, float* y) {
  EDGE_KIT_UNROLL for (int64_t i = 0; i < kTileN; i += 4) {
    const float32x4_t bias = w.bias ? vld1q_f32(w.bias + n + i) : vdupq_n_f32(0.0f);
    const float32x4_t scaled = vmulq_f32(vld1q_f32(sums + i), vld1q_f32(w.scale + n + i));
    vst1q_f32(y + n + i, vaddq_f32(scaled, bias));
  }
}

// multiply(panel) adds the panel's products to its running sums, R rows at a time. Tiles are taken T at a
// time: begin(panel) is called before the first of the T panels that have the same groups.
template <int R, int T, typename Begin, typename Multiply>
void linear_tiles(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride, int64_t n_begin,
                  int64_t n_end, const Begin& begin, const Multiply& multiply) {
  alignas(64) float sums[T][kRangeRows][kTileN];
  alignas(64) int8_t tail[kGroupBytes];  // a tile's last group padded with zeros, where K ends within it
  const int64_t whole = w.k / kGroup, tail_at = whole * kGroupBytes, tile_bytes = w.k * kTileN;
  for (int64_t first = 0; first < x.rows; first += kRangeRows) {
    const int64_t last = smaller(x.rows, first + kRangeRows), blocks = (last - first + R - 1) / R;
    const int64_t next_bytes = (kGroupBytes / blocks + kPrefetchStep - 1) / kPrefetchStep * kPrefetchStep;
    for (int64_t n = n_begin, tiles; n < n_end; n += tiles * kTileN) {
      tiles = smaller(T, (n_end - n) / kTileN);
      const int8_t* weights = static_cast<const int8_t*>(w.data) + n * w.k;
      for (int64_t t = 0; t < tiles; ++t) {
        __builtin_memset(sums[t], 0, static_cast<size_t>(blocks * R) * sizeof **sums);
      }
      for (int64_t g = 0, g_end; g < x.groups; g = g_end) {
        g_end = g < whole ? smaller(whole, g + kPanelGroups) : x.groups;
        for (int64_t t = 0; t < tiles; ++t) {
          const int8_t* tile = weights + t * tile_bytes;
          const int8_t* from = g < whole ? tile + g * kGroupBytes : tail;
          const int8_t* next = t + 1 < tiles ? tile + tile_bytes + smaller(g, whole) * kGroupBytes
                               : g_end < x.groups ? weights + g_end * kGroupBytes
                                                  : tile + tile_bytes;
          if (from == tail) {
            __builtin_memset(tail, 0, sizeof tail);
            __builtin_memcpy(tail, tile + tail_at, static_cast<size_t>(tile_bytes - tail_at));
          }
          const int8_t* next_end = next + kPanelGroups * kGroupBytes;
          Panel panel = {x, first, last, sums[t], g, g_end, from, next, next_end, next_bytes};
          if (t == 0) begin(panel);
          multiply(panel);
        }
      }
      for (int64_t t = 0; t < tiles; ++t) {
        for (int64_t r = first; r < last; ++r) {
          store_outputs(w, n + t * kTileN, sums[t][r - first], y + r * y_stride);
        }
      }
    }
  }
}

// Tile by tile, Block::multiply<R> for R rows at a time.
template <typename Block>
void linear_tiles(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride, int64_t n_begin,
                  int64_t n_end) {
  linear_tiles<Block::kRows, 1>(w, x, y, y_stride, n_begin, n_end, [](Panel&) {},
                                [](Panel& panel) { multiply_rows<Block, Block::kRows>(panel, panel.first); });
}

}  // namespace
}  // namespace edge_kit
