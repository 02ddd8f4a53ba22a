// INT8 linear layers over weight tiles in 256-bit registers: a quad of 16 outputs by 4 inputs is two of them.
#pragma once

#include "rows_256.h"

namespace edge_kit {
namespace {

// R rows from `row` by the tile of outputs n..n+15. `y` is the first of the rows.
template <typename Dot, int R>
void multiply_tile(const Weight& w, const QuantizedRows& x, int64_t row, float* y, int64_t y_stride, int64_t n) {
  constexpr int64_t kQuadBytes = kTileN * kTileK, kQuads = kGroup / kTileK;
  const int8_t* weights = static_cast<const int8_t*>(w.data) + n * w.k;
  const int64_t row_bytes = x.groups * kGroup, quads = w.k / kTileK;
  __m256 sums[R][2];
  EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = _mm256_setzero_ps();
  for (int64_t g = 0; g < x.groups; ++g) {
    __m256i dot[R][2];
    EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) dot[r][0] = dot[r][1] = Dot::start(x.offset[(row + r) * x.groups + g]);
    const int8_t* values = x.values + row * row_bytes + g * kGroup;
    const auto add_quad = [&](int64_t q) {
      prefetch(weights + q * kQuadBytes + kPrefetchBytes);
      const __m256i* quad = reinterpret_cast<const __m256i*>(weights + q * kQuadBytes);
      const __m256i lo = _mm256_loadu_si256(quad), hi = _mm256_loadu_si256(quad + 1);
      const __m256i prepared_lo = Dot::prepare(lo), prepared_hi = Dot::prepare(hi);
      EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
        int32_t four;
        __builtin_memcpy(&four, values + r * row_bytes + q * kTileK, sizeof four);
        const __m256i value = _mm256_set1_epi32(four);
        dot[r][0] = Dot::add(dot[r][0], lo, prepared_lo, value);
        dot[r][1] = Dot::add(dot[r][1], hi, prepared_hi, value);
      }
    };
    const int64_t count = smaller(kQuads, quads - g * kQuads);
    if (count == kQuads) {
      EDGE_KIT_UNROLL for (int64_t q = 0; q < kQuads; ++q) add_quad(q);
    } else {
      for (int64_t q = 0; q < count; ++q) add_quad(q);
    }
    weights += count * kQuadBytes;
    EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
      const __m256 scale = _mm256_set1_ps(x.scale[(row + r) * x.groups + g]);
      sums[r][0] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(dot[r][0]), sums[r][0]);
      sums[r][1] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(dot[r][1]), sums[r][1]);
    }
  }
  EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
    EDGE_KIT_UNROLL for (int h = 0; h < 2; ++h) {
      const int64_t at = n + h * 8;
      const __m256 bias = w.bias ? _mm256_loadu_ps(w.bias + at) : _mm256_setzero_ps();
      const __m256 scaled = _mm256_mul_ps(sums[r][h], _mm256_loadu_ps(w.scale + at));
      _mm256_storeu_ps(y + r * y_stride + at, _mm256_add_ps(scaled, bias));
    }
  }
}

// All rows in blocks of R, the rest in ever smaller ones.
template <typename Dot, int R>
void multiply_rows(const Weight& w, const QuantizedRows& x, int64_t row, float* y, int64_t y_stride, int64_t n) {
  if constexpr (R > 0) {
    for (; row + R <= x.rows; row += R) multiply_tile<Dot, R>(w, x, row, y + row * y_stride, y_stride, n);
    multiply_rows<Dot, R - 1>(w, x, row, y, y_stride, n);
  }
}

// `R` is how many rows fit the registers.
template <typename Dot, int R>
void linear_256(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride, int64_t n_begin,
                int64_t n_end) {
  if (w.layout == WeightLayout::kRows) return linear_rows<Dot>(w, x, y, y_stride, n_begin, n_end);
  for (int64_t n = n_begin; n < n_end; n += kTileN) multiply_rows<Dot, R>(w, x, 0, y, y_stride, n);
}

}  // namespace
}  // namespace edge_kit
