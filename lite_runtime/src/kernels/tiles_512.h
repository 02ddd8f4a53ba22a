// What the INT8 linear layers over weight tiles share that are compiled with AVX-512.
#pragma once

#if !defined(__clang__)  // GCC 12 takes its own _mm512_undefined for a mistake
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "isa_common.h"
#include "kernels.h"

namespace edge_kit {
namespace {

constexpr int64_t kQuadBytes = kTileN * kTileK;   // one register: 16 outputs by 4 inputs
constexpr int64_t kQuads = kGroup / kTileK;       // registers per group
constexpr int64_t kGroupBytes = kGroup * kTileN;  // of one tile
constexpr int64_t kPanelGroups = 8;               // of a weight tile, that stay in L1 while the rows meet them
constexpr int64_t kRangeTiles = 8;                // most tiles that one pass over the rows serves,
constexpr int64_t kRangeRows = 256;               // and most rows: their running sums are held on the stack

// Rows [first, last) by `tiles` weight tiles from output n on: panel by panel along K, so that a panel's
// activations come near once for all tiles.
struct TileRange {
  const Weight& w;
  const QuantizedRows& x;
  int64_t first, last;
  int64_t n, tiles;
  float* y;
  int64_t y_stride;

  int64_t tile_bytes() const { return w.k * kTileN; }
  const int8_t* weights() const { return static_cast<const int8_t*>(w.data) + n * w.k; }

  // What is read after the panel of groups [g, g_end) whose last tile comes before `t_end`, of its first tile.
  const int8_t* after(int64_t g, int64_t g_end, int64_t t_end) const {
    if (t_end < tiles) return weights() + t_end * tile_bytes() + g * kGroupBytes;
    return g_end < x.groups ? weights() + g_end * kGroupBytes : weights() + tiles * tile_bytes();
  }
};

// multiply(range) for ranges that cover all rows and outputs [n_begin, n_end).
template <typename Multiply>
void for_ranges(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride, int64_t n_begin,
                int64_t n_end, const Multiply& multiply) {
  for (int64_t n = n_begin; n < n_end; n += kRangeTiles * kTileN) {
    const int64_t tiles = smaller(kRangeTiles, (n_end - n) / kTileN);
    for (int64_t first = 0; first < x.rows; first += kRangeRows) {
      multiply(TileRange{w, x, first, smaller(x.rows, first + kRangeRows), n, tiles, y, y_stride});
    }
  }
}

void store_output(const Weight& w, int64_t n, __m512 sum, float* y) {
  const __m512 bias = w.bias ? _mm512_loadu_ps(w.bias + n) : _mm512_setzero_ps();
  _mm512_storeu_ps(y + n, _mm512_add_ps(_mm512_mul_ps(sum, _mm512_loadu_ps(w.scale + n)), bias));
}

}  // namespace
}  // namespace edge_kit
