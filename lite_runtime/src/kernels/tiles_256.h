// INT8 linear layers over weight tiles in 256-bit registers: a quad of 16 outputs by 4 inputs is two of them.
#pragma once

#include "rows_256.h"

namespace edge_kit {
namespace {

// R rows from `row` by the T tiles from output n on. `y` is the first of the rows.
template <typename Dot, int R, int T>
void multiply_tiles(const Weight& w, const QuantizedRows& x, int64_t row, float* y, int64_t y_stride,
                    int64_t n) {
  constexpr int64_t kQuadBytes = kTileN * kTileK, kQuads = kGroup / kTileK;
  constexpr int kHalves = 2 * T;
  const int64_t tile_bytes = w.k * kTileN, row_bytes = x.groups * kGroup, quads = w.k / kTileK;
  const int8_t* weights = static_cast<const int8_t*>(w.data) + n * w.k;
  __m256 sums[R][kHalves];
  EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
    EDGE_KIT_UNROLL for (int h = 0; h < kHalves; ++h) sums[r][h] = _mm256_setzero_ps();
  }
  for (int64_t g = 0; g < x.groups; ++g) {
    const int8_t* values = x.values + row * row_bytes + g * kGroup;
    __m256i dot[R][kHalves];
    EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
      const __m256i start = Dot::start(x.offset[(row + r) * x.groups + g]);
      EDGE_KIT_UNROLL for (int h = 0; h < kHalves; ++h) dot[r][h] = start;
    }
    const auto add_quad = [&](int64_t q) {
      EDGE_KIT_UNROLL for (int h = 0; h < kHalves; ++h) {
        const int8_t* at = weights + h / 2 * tile_bytes + q * kQuadBytes + h % 2 * 32;
        if (h % 2 == 0) prefetch(at + kPrefetchBytes);
        const __m256i quad = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
        const __m256i prepared = Dot::prepare(quad);
        EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
          int32_t four;
          __builtin_memcpy(&four, values + r * row_bytes + q * kTileK, sizeof four);
          dot[r][h] = Dot::add(dot[r][h], quad, prepared, _mm256_set1_epi32(four));
        }
      }
    };
    if ((g + 1) * kQuads <= quads) {
      EDGE_KIT_UNROLL for (int64_t q = 0; q < kQuads; ++q) add_quad(q);
    } else {
      for (int64_t q = 0; q < quads - g * kQuads; ++q) add_quad(q);
    }
    weights += kQuads * kQuadBytes;
    EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
      const __m256 scale = _mm256_set1_ps(x.scale[(row + r) * x.groups + g]);
      EDGE_KIT_UNROLL for (int h = 0; h < kHalves; ++h) {
        sums[r][h] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(dot[r][h]), sums[r][h]);
      }
    }
  }
  EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
    EDGE_KIT_UNROLL for (int h = 0; h < kHalves; ++h) {
      const int64_t at = n + h * 8;
      const __m256 bias = w.bias ? _mm256_loadu_ps(w.bias + at) : _mm256_setzero_ps();
      const __m256 scaled = _mm256_mul_ps(sums[r][h], _mm256_loadu_ps(w.scale + at));
      _mm256_storeu_ps(y + r * y_stride + at, _mm256_add_ps(scaled, bias));
    }
  }
}

// Rows from `row` on in blocks of R, the rest in ever smaller ones.
template <typename Dot, int R, int T>
void multiply_rows(const Weight& w, const QuantizedRows& x, int64_t row, float* y, int64_t y_stride,
                   int64_t n) {
  if constexpr (R > 0) {
    for (; row + R <= x.rows; row += R) multiply_tiles<Dot, R, T>(w, x, row, y + row * y_stride, y_stride, n);
    multiply_rows<Dot, R - 1, T>(w, x, row, y, y_stride, n);
  }
}

// `R` is how many rows fit the registers.
template <typename Dot, int R>
void linear_256(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride, int64_t n_begin,
                int64_t n_end) {
  if (w.layout == WeightLayout::kRows) return linear_rows<Dot>(w, x, y, y_stride, n_begin, n_end);
  int64_t n = n_begin;
  if (x.rows == 1) {  // bound by memory: neighbouring tiles at once keep more reads in flight
    constexpr int kTiles = 4;
    for (; n + kTiles * kTileN <= n_end; n += kTiles * kTileN) {
      multiply_tiles<Dot, 1, kTiles>(w, x, 0, y, y_stride, n);
    }
  }
  for (; n < n_end; n += kTileN) multiply_rows<Dot, R, 1>(w, x, 0, y, y_stride, n);
}

}  // namespace
}  // namespace edge_kit
