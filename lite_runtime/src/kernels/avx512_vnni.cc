// AVX-512 with VNNI. One 512-bit register holds a tile's 16 outputs by 4 inputs, so lanes are outputs and
// vpdpbusd adds the four products of each. It multiplies unsigned by signed bytes: weights are read as
// w ^ 0x80 = w + 128, and each group's accumulator starts at -128 * sum(x).
#if defined(__x86_64__)

#if !defined(__clang__)  // GCC 12 takes its own _mm512_undefined for a mistake
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "lanes_avx512.h"
// Kernels over `Lanes`, compiled here with this file's flags.
#include "attention.h"
#include "float_ops.h"
#include "linear_float.h"
#include "paths.h"
#include "rows_256.h"

namespace edge_kit {
namespace {

constexpr int64_t kQuadBytes = kTileN * kTileK;                      // one register of weights
constexpr int64_t kQuads = kGroup / kTileK;                          // registers per group
constexpr int64_t kGroupBytes = kGroup * kTileN;                     // of one tile
constexpr int64_t kPanelGroups = 16;                                 // packed weights stay in L1
constexpr int kPackedTiles = 2, kPackedRows = 6;     // register block of the packed product

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

// A few rows, bound by memory: walks the tiles as one stream, each weight is loaded once for all rows.
template <int R>
void stream_tiles(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride, int64_t n_begin,
                  int64_t n_end) {
  const uint8_t* weights = static_cast<const uint8_t*>(w.data) + n_begin * w.k;
  const int64_t whole_groups = w.k / kGroup, tail_quads = w.k % kGroup / kTileK, row_bytes = x.groups * kGroup;
  for (int64_t n = n_begin; n < n_end; n += kTileN) {
    __m512 sums[R];
    EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) sums[r] = _mm512_setzero_ps();
    for (int64_t g = 0; g < x.groups; ++g) {
      __m512i dot[R];
      EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) dot[r] = _mm512_set1_epi32(x.offset[r * x.groups + g]);
      const int8_t* values = x.values + g * kGroup;
      const auto add_quad = [&](int64_t q) {
        const __m512i quad = load_unsigned(weights + q * kQuadBytes);
        EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
          dot[r] = _mm512_dpbusd_epi32(dot[r], quad, broadcast_quad(values + r * row_bytes + q * kTileK));
        }
      };
      if (g < whole_groups) {
        EDGE_KIT_UNROLL for (int64_t q = 0; q < kQuads; ++q) {
          _mm_prefetch(reinterpret_cast<const char*>(weights + q * kQuadBytes + kPrefetchBytes), _MM_HINT_T0);
          add_quad(q);
        }
        weights += kGroupBytes;
      } else {
        for (int64_t q = 0; q < tail_quads; ++q) add_quad(q);
        weights += tail_quads * kQuadBytes;
      }
      EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
        sums[r] = _mm512_fmadd_ps(_mm512_set1_ps(x.scale[r * x.groups + g]), _mm512_cvtepi32_ps(dot[r]), sums[r]);
      }
    }
    EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) store_output(w, n, sums[r], y + r * y_stride);
  }
}

// `groups` groups of one tile as unsigned bytes; quads past K are weights of zero.
void pack_panel(const uint8_t* weights, int64_t quads, int64_t groups, uint8_t* packed) {
  for (int64_t q = 0; q < quads; ++q) {
    _mm_prefetch(reinterpret_cast<const char*>(weights + q * kQuadBytes + kPrefetchBytes), _MM_HINT_T0);
    _mm512_store_si512(packed + q * kQuadBytes, load_unsigned(weights + q * kQuadBytes));
  }
  for (int64_t q = quads; q < groups * kQuads; ++q) {
    _mm512_store_si512(packed + q * kQuadBytes, _mm512_set1_epi8(static_cast<char>(0x80)));
  }
}

// Adds groups [g_begin, g_end) of R rows from `row` by T tiles to the sums in y.
template <int R, int T>
void multiply_panel(const uint8_t (*packed)[kPanelGroups * kGroupBytes], const QuantizedRows& x, int64_t row,
                    int64_t g_begin, int64_t g_end, float* y, int64_t y_stride) {
  const int64_t row_bytes = x.groups * kGroup;
  const int8_t* values = x.values + row * row_bytes + g_begin * kGroup;
  const float* scale = x.scale + row * x.groups;
  const int32_t* offset = x.offset + row * x.groups;
  __m512 sums[R][T];
  EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
    EDGE_KIT_UNROLL for (int t = 0; t < T; ++t) {
      sums[r][t] = g_begin == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(y + r * y_stride + t * kTileN);
    }
  }
  const uint8_t* weights = packed[0];
  for (int64_t g = g_begin; g < g_end; ++g) {
    __m512i dot[R][T];
    EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
      EDGE_KIT_UNROLL for (int t = 0; t < T; ++t) dot[r][t] = _mm512_set1_epi32(offset[r * x.groups + g]);
    }
    EDGE_KIT_UNROLL for (int64_t q = 0; q < kQuads; ++q) {
      __m512i quad[T];
      EDGE_KIT_UNROLL for (int t = 0; t < T; ++t) {
        quad[t] = _mm512_load_si512(weights + t * kPanelGroups * kGroupBytes + q * kQuadBytes);
      }
      EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
        const __m512i value = broadcast_quad(values + r * row_bytes + q * kTileK);
        EDGE_KIT_UNROLL for (int t = 0; t < T; ++t) dot[r][t] = _mm512_dpbusd_epi32(dot[r][t], quad[t], value);
      }
    }
    EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
      const __m512 row_scale = _mm512_set1_ps(scale[r * x.groups + g]);
      EDGE_KIT_UNROLL for (int t = 0; t < T; ++t) {
        sums[r][t] = _mm512_fmadd_ps(row_scale, _mm512_cvtepi32_ps(dot[r][t]), sums[r][t]);
      }
    }
    weights += kGroupBytes;
    values += kGroup;
  }
  EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
    EDGE_KIT_UNROLL for (int t = 0; t < T; ++t) _mm512_storeu_ps(y + r * y_stride + t * kTileN, sums[r][t]);
  }
}

// Rows [row, x.rows) that do not fill a block of R, then ever smaller blocks.
template <int R, int T>
void multiply_rest(const uint8_t (*packed)[kPanelGroups * kGroupBytes], const QuantizedRows& x, int64_t row,
                   int64_t g_begin, int64_t g_end, float* y, int64_t y_stride) {
  if constexpr (R > 0) {
    if (x.rows - row == R) return multiply_panel<R, T>(packed, x, row, g_begin, g_end, y + row * y_stride, y_stride);
    multiply_rest<R - 1, T>(packed, x, row, g_begin, g_end, y, y_stride);
  }
}

// Many rows by T tiles: one panel of weights after the other is packed into L1 and meets all rows there.
// y holds the running sums between panels.
template <int T>
void multiply_tiles(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride, int64_t n) {
  alignas(64) uint8_t packed[T][kPanelGroups * kGroupBytes];
  for (int64_t g_begin = 0; g_begin < x.groups; g_begin += kPanelGroups) {
    const int64_t g_end = smaller(x.groups, g_begin + kPanelGroups);
    const int64_t k_begin = g_begin * kGroup, k_end = smaller(w.k, g_end * kGroup);
    for (int t = 0; t < T; ++t) {
      const uint8_t* tile = static_cast<const uint8_t*>(w.data) + (n + t * kTileN) * w.k;
      pack_panel(tile + k_begin * kTileN, (k_end - k_begin) / kTileK, g_end - g_begin, packed[t]);
    }
    int64_t row = 0;
    for (; row + kPackedRows <= x.rows; row += kPackedRows) {
      multiply_panel<kPackedRows, T>(packed, x, row, g_begin, g_end, y + row * y_stride + n, y_stride);
    }
    multiply_rest<kPackedRows - 1, T>(packed, x, row, g_begin, g_end, y + n, y_stride);
  }
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int t = 0; t < T; ++t) {
      float* row = y + r * y_stride;
      store_output(w, n + t * kTileN, _mm512_loadu_ps(row + n + t * kTileN), row);
    }
  }
}

struct Dot {
  static __m256i prepare(__m256i weights) { return _mm256_xor_si256(weights, _mm256_set1_epi8(static_cast<char>(0x80))); }
  static __m256i start(int32_t offset) { return _mm256_set1_epi32(offset); }
  static __m256i add(__m256i sum, __m256i, __m256i prepared, __m256i values) {
    return _mm256_dpbusd_epi32(sum, prepared, values);
  }
};

void linear_int8(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride, int64_t n_begin,
                 int64_t n_end) {
  if (w.layout == WeightLayout::kRows) return linear_rows<Dot>(w, x, y, y_stride, n_begin, n_end);
  if (x.rows == 1) return stream_tiles<1>(w, x, y, y_stride, n_begin, n_end);
  if (x.rows == 2) return stream_tiles<2>(w, x, y, y_stride, n_begin, n_end);
  if (x.rows == 3) return stream_tiles<3>(w, x, y, y_stride, n_begin, n_end);
  if (x.rows == 4) return stream_tiles<4>(w, x, y, y_stride, n_begin, n_end);
  int64_t n = n_begin;
  for (; n + kPackedTiles * kTileN <= n_end; n += kPackedTiles * kTileN) {
    multiply_tiles<kPackedTiles>(w, x, y, y_stride, n);
  }
  if (n < n_end) multiply_tiles<1>(w, x, y, y_stride, n);
}

}  // namespace

const Kernels kAvx512VnniKernels = {
    "avx512-vnni", quantize_row, linear_int8, linear_float, rms_norm, rope, silu_mul, add,
    attention<uint16_t>, attention<float>, to_f16, read_stream,
};

}  // namespace edge_kit

#endif  // __x86_64__
