// AVX-512 with VNNI. One 512-bit register holds a tile's 16 outputs by 4 inputs, so lanes are outputs and
// vpdpbusd adds the four products of each. It multiplies unsigned by signed bytes: weights are read as
// w ^ 0x80 = w + 128, and each group's accumulator starts at -128 * sum(x).
#if defined(__x86_64__)

#include "tiles_512.h"  // first: it quiets GCC before <immintrin.h>

#include "lanes_avx512.h"
// Kernels over `Lanes`, compiled here with this file's flags.
#include "attention.h"
#include "float_ops.h"
#include "linear_float.h"
#include "paths.h"
#include "rows_256.h"

namespace edge_kit {
namespace {

constexpr int kPackedRows = 7, kPackedTiles = 2;  // register block of more rows

using RunningSums = float[kRangeRows][kRangeTiles * kTileN];

__m512i load_unsigned(const int8_t* weights) {
  return _mm512_xor_si512(_mm512_loadu_si512(weights), _mm512_set1_epi8(static_cast<char>(0x80)));
}

__m512i broadcast_quad(const int8_t* values) {
  int32_t quad;
  __builtin_memcpy(&quad, values, sizeof quad);
  return _mm512_set1_epi32(quad);
}

// A few rows, bound by memory: R rows by T tiles from output n on. Walking several neighbouring tiles at once
// keeps more reads in flight than one stream does; each weight is loaded once for all rows.
template <int R, int T>
void stream_block(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride, int64_t n) {
  const int64_t tile_bytes = w.k * kTileN, row_bytes = x.groups * kGroup, quads = w.k / kTileK;
  const int8_t* weights = static_cast<const int8_t*>(w.data) + n * w.k;
  __m512 sums[R][T];
  EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
    EDGE_KIT_UNROLL for (int t = 0; t < T; ++t) sums[r][t] = _mm512_setzero_ps();
  }
  for (int64_t g = 0; g < x.groups; ++g) {
    // Near the end of the tiles, the beginnings of the next T are wanted instead.
    const bool ends = (g + 1) * kGroupBytes + kPrefetchBytes > tile_bytes;
    const int8_t* ahead = weights + kPrefetchBytes + (ends ? (T - 1) * tile_bytes : 0);
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
    constexpr int kTiles = 4;  // fewer streams read less, even where their sums fit the registers
    int64_t n = n_begin;
    for (; n + kTiles * kTileN <= n_end; n += kTiles * kTileN) stream_block<R, kTiles>(w, x, y, y_stride, n);
    for (; n < n_end; n += kTileN) stream_block<R, 1>(w, x, y, y_stride, n);
  }
}

// Weights of T tiles as unsigned bytes, [quads, T, 16, 4]; quads past K are weights of zero.
template <int T>
void pack_panel(const int8_t* weights, int64_t tile_bytes, int64_t quads, int64_t padded_quads,
                uint8_t* packed) {
  for (int64_t q = 0; q < quads; ++q) {
    EDGE_KIT_UNROLL for (int t = 0; t < T; ++t) {
      const __m512i quad = load_unsigned(weights + t * tile_bytes + q * kQuadBytes);
      _mm512_store_si512(packed + (q * T + t) * kQuadBytes, quad);
    }
  }
  for (int64_t q = quads * T; q < padded_quads * T; ++q) {
    _mm512_store_si512(packed + q * kQuadBytes, _mm512_set1_epi8(static_cast<char>(0x80)));
  }
}

// The weights that the next panel is packed from. They are prefetched while this one is multiplied, `lines`
// of each tile per row block and group.
struct NextPanel {
  const int8_t* weights;
  int64_t tile_bytes, lines;
};

// Adds groups [g_begin, g_end) of R rows from `row` by T packed tiles to the rows' sums.
template <int R, int T>
void multiply_panel(const uint8_t* packed, const QuantizedRows& x, int64_t row, int64_t g_begin, int64_t g_end,
                    float* running, NextPanel* next) {
  constexpr int64_t kRunning = kRangeTiles * kTileN;  // from row to row
  const int64_t groups = x.groups, row_bytes = groups * kGroup;
  __m512 sums[R][T];
  EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
    EDGE_KIT_UNROLL for (int t = 0; t < T; ++t) {
      sums[r][t] = g_begin == 0 ? _mm512_setzero_ps() : _mm512_load_ps(running + r * kRunning + t * kTileN);
    }
  }
  const int8_t* values = x.values + row * row_bytes + g_begin * kGroup;
  const float* scale = x.scale + row * groups;
  const int32_t* offset = x.offset + row * groups;
  for (int64_t g = g_begin; g < g_end; ++g, values += kGroup, packed += T * kGroupBytes) {
    for (int64_t i = 0; i < next->lines; ++i, next->weights += kQuadBytes) {
      EDGE_KIT_UNROLL for (int t = 0; t < T; ++t) {
        _mm_prefetch(reinterpret_cast<const char*>(next->weights + t * next->tile_bytes), _MM_HINT_T1);
      }
    }
    __m512i dot[R][T];
    EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
      EDGE_KIT_UNROLL for (int t = 0; t < T; ++t) dot[r][t] = _mm512_set1_epi32(offset[r * groups + g]);
    }
    EDGE_KIT_UNROLL for (int64_t q = 0; q < kQuads; ++q) {
      __m512i quad[T];
      EDGE_KIT_UNROLL for (int t = 0; t < T; ++t) {
        quad[t] = _mm512_load_si512(packed + (q * T + t) * kQuadBytes);
      }
      EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
        const __m512i value = broadcast_quad(values + r * row_bytes + q * kTileK);
        EDGE_KIT_UNROLL for (int t = 0; t < T; ++t) dot[r][t] = _mm512_dpbusd_epi32(dot[r][t], quad[t], value);
      }
    }
    EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
      const __m512 row_scale = _mm512_set1_ps(scale[r * groups + g]);
      EDGE_KIT_UNROLL for (int t = 0; t < T; ++t) {
        sums[r][t] = _mm512_fmadd_ps(row_scale, _mm512_cvtepi32_ps(dot[r][t]), sums[r][t]);
      }
    }
  }
  EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
    EDGE_KIT_UNROLL for (int t = 0; t < T; ++t) {
      _mm512_store_ps(running + r * kRunning + t * kTileN, sums[r][t]);
    }
  }
}

// One block of `rows` <= R rows.
template <int R, int T>
void multiply_block(int64_t rows, const uint8_t* packed, const QuantizedRows& x, int64_t row, int64_t g_begin,
                    int64_t g_end, float* running, NextPanel* next) {
  if constexpr (R > 0) {
    if (rows == R) return multiply_panel<R, T>(packed, x, row, g_begin, g_end, running, next);
    multiply_block<R - 1, T>(rows, packed, x, row, g_begin, g_end, running, next);
  }
}

// All rows of the range by one panel: T tiles from `t` on, packed into L1.
template <int T>
void multiply_tiles(const TileRange& range, int64_t g_begin, int64_t t, RunningSums& running) {
  alignas(64) uint8_t packed[kPanelGroups * T * kGroupBytes];
  const QuantizedRows& x = range.x;
  const int64_t rows = range.last - range.first, row_blocks = (rows + kPackedRows - 1) / kPackedRows;
  const int64_t g_end = smaller(x.groups, g_begin + kPanelGroups), groups = g_end - g_begin;
  const int64_t quads = smaller(groups * kQuads, range.w.k / kTileK - g_begin * kQuads);
  const int8_t* weights = range.weights() + t * range.tile_bytes() + g_begin * kGroupBytes;
  pack_panel<T>(weights, range.tile_bytes(), quads, groups * kQuads, packed);
  NextPanel next = {range.after(g_begin, g_end, t + T), range.tile_bytes(),
                    (kQuads + row_blocks - 1) / row_blocks};
  for (int64_t block = 0; block < row_blocks; ++block) {  // as equal as can be
    const int64_t begin = rows * block / row_blocks, end = rows * (block + 1) / row_blocks;
    multiply_block<kPackedRows, T>(end - begin, packed, x, range.first + begin, g_begin, g_end,
                                   running[begin] + t * kTileN, &next);
    // Block by block, so that the scattered stores drain while the next block is multiplied.
    for (int64_t r = begin; r < end && g_end == x.groups; ++r) {
      for (int64_t i = t; i < t + T; ++i) {
        const __m512 sum = _mm512_load_ps(running[r] + i * kTileN);
        store_output(range.w, range.n + i * kTileN, sum, range.y + (range.first + r) * range.y_stride);
      }
    }
  }
}

void multiply_range(const TileRange& range) {
  alignas(64) RunningSums running;
  for (int64_t g = 0; g < range.x.groups; g += kPanelGroups) {
    int64_t t = 0;
    for (; t + kPackedTiles <= range.tiles; t += kPackedTiles) {
      multiply_tiles<kPackedTiles>(range, g, t, running);
    }
    for (; t < range.tiles; ++t) multiply_tiles<1>(range, g, t, running);
  }
}

struct Dot : UnsignedWeights {
  static __m256i add(__m256i sum, __m256i, __m256i prepared, __m256i values) {
    return _mm256_dpbusd_epi32(sum, prepared, values);
  }
};

void linear_int8(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride, int64_t n_begin,
                 int64_t n_end) {
  if (w.layout == WeightLayout::kRows) return linear_rows<Dot>(w, x, y, y_stride, n_begin, n_end);
  if (x.rows <= kStreamedRows) return stream_tiles<kStreamedRows>(w, x, y, y_stride, n_begin, n_end);
  for_ranges(w, x, y, y_stride, n_begin, n_end, multiply_range);
}

}  // namespace

const Kernels kAvx512VnniKernels = {
    "avx512-vnni", quantize_row, linear_int8, linear_float, rms_norm, rope, silu_mul, add,
    attention<uint16_t, uint16_t>, attention<float, float>, attention<int8_t, uint16_t>, fold_partials,
    quantize_plane, to_f16, read_stream,
};

}  // namespace edge_kit

#endif  // __x86_64__
