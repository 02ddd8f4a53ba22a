// What the paths with AVX512-VNNI share. One 512-bit register holds a tile's 16 outputs by 4 inputs, so lanes
// are outputs and vpdpbusd adds the four products of each. It multiplies unsigned by signed bytes: weights are
// read as w ^ 0x80 = w + 128, and each group's accumulator starts at -128 * sum(x).
#pragma once

#if !defined(__clang__)  // GCC 12 takes its own _mm512_undefined for a mistake
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "lanes_avx512.h"
// Kernels over `Lanes`, compiled with the flags of the file that includes this.
#include "attention.h"
#include "float_ops.h"
#include "linear_float.h"
#include "paths.h"
#include "rows_256.h"

namespace edge_kit {
namespace {

constexpr int64_t kQuadBytes = kTileN * kTileK;    // one register of weights
constexpr int64_t kQuads = kGroup / kTileK;        // registers per group
constexpr int64_t kGroupBytes = kGroup * kTileN;   // of one tile
constexpr int kStreamedRows = 8;                   // up to here the weights are streamed

__m512i load_unsigned(const uint8_t* weights) {
  return _mm512_xor_si512(_mm512_loadu_si512(weights), _mm512_set1_epi8(static_cast<char>(0x80)));
}

__m512i broadcast_quad(const int8_t* values) {
  int32_t quad;
  __builtin_memcpy(&quad, values, sizeof quad);
  return _mm512_set1_epi32(quad);
}

void store_output(const Weight& w, int64_t n, __m512 sum, float* y) {
  const __m512 bias = w.bias ? _mm512_loadu_ps(w.bias + n) : _mm512_setzero_ps();
  _mm512_storeu_ps(y + n, _mm512_add_ps(_mm512_mul_ps(sum, _mm512_loadu_ps(w.scale + n)), bias));
}

// A few rows, bound by memory: R rows by T tiles from output n on. Walking several neighbouring tiles at once
// keeps more reads in flight than one stream does; each weight is loaded once for all rows.
template <int R, int T>
void stream_block(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride, int64_t n) {
  const int64_t tile_bytes = w.k * kTileN, row_bytes = x.groups * kGroup, quads = w.k / kTileK;
  const uint8_t* weights = static_cast<const uint8_t*>(w.data) + n * w.k;
  __m512 sums[R][T];
  EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
    EDGE_KIT_UNROLL for (int t = 0; t < T; ++t) sums[r][t] = _mm512_setzero_ps();
  }
  for (int64_t g = 0; g < x.groups; ++g) {
    // Near the end of the tiles, the beginnings of the next T are wanted instead.
    const bool ends = (g + 1) * kGroupBytes + kPrefetchBytes > tile_bytes;
    const uint8_t* ahead = weights + kPrefetchBytes + (ends ? (T - 1) * tile_bytes : 0);
    const int8_t* values = x.values + g * kGroup;
    __m512i dot[R][T];
    EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
      EDGE_KIT_UNROLL for (int t = 0; t < T; ++t) dot[r][t] = _mm512_set1_epi32(x.offset[r * x.groups + g]);
    }
    const auto add_quad = [&](int64_t q) {
      __m512i quad[T];
      EDGE_KIT_UNROLL for (int t = 0; t < T; ++t) {
        prefetch(ahead + t * tile_bytes + q * kQuadBytes);
        quad[t] = load_unsigned(weights + t * tile_bytes + q * kQuadBytes);
      }
      EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
        const __m512i value = broadcast_quad(values + r * row_bytes + q * kTileK);
        EDGE_KIT_UNROLL for (int t = 0; t < T; ++t) dot[r][t] = _mm512_dpbusd_epi32(dot[r][t], quad[t], value);
      }
    };
    if ((g + 1) * kQuads <= quads) {
      EDGE_KIT_UNROLL for (int64_t q = 0; q < kQuads; ++q) add_quad(q);
    } else {
      for (int64_t q = 0; q < quads - g * kQuads; ++q) add_quad(q);
    }
    weights += kGroupBytes;
    EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
      const __m512 scale = _mm512_set1_ps(x.scale[r * x.groups + g]);
      EDGE_KIT_UNROLL for (int t = 0; t < T; ++t) {
        sums[r][t] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(dot[r][t]), sums[r][t]);
      }
    }
  }
  EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
    EDGE_KIT_UNROLL for (int t = 0; t < T; ++t) store_output(w, n + t * kTileN, sums[r][t], y + r * y_stride);
  }
}

template <int R>
void stream_tiles(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride, int64_t n_begin,
                  int64_t n_end) {
  if constexpr (R > 0) {
    if (x.rows < R) return stream_tiles<R - 1>(w, x, y, y_stride, n_begin, n_end);
    constexpr int kTiles = R <= 4 ? 4 : 2;
    int64_t n = n_begin;
    for (; n + kTiles * kTileN <= n_end; n += kTiles * kTileN) stream_block<R, kTiles>(w, x, y, y_stride, n);
    for (; n < n_end; n += kTileN) stream_block<R, 1>(w, x, y, y_stride, n);
  }
}

struct Dot {
  static __m256i prepare(__m256i weights) {
    return _mm256_xor_si256(weights, _mm256_set1_epi8(static_cast<char>(0x80)));
  }
  static __m256i start(int32_t offset) { return _mm256_set1_epi32(offset); }
  static __m256i add(__m256i sum, __m256i, __m256i prepared, __m256i values) {
    return _mm256_dpbusd_epi32(sum, prepared, values);
  }
};

}  // namespace
}  // namespace edge_kit
