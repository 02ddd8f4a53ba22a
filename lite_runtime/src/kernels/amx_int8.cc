// AMX with int8 tiles: a weight tile of the file, [K/4, 16, 4], is just what a tile register wants as its
// second operand, so the weights are loaded from where they lie. tdpbssd multiplies up to 16 rows of one
// activation group by the 16 outputs exactly in int32; the groups are then added in fp32 by AVX-512, in the
// order that all paths keep. A few rows are bound by memory and take the streams of AVX512-VNNI.
//
// Linux gives a process the tile registers only when it asks; dispatch.cc does.
#if defined(__x86_64__)

#include "paths.h"
#include "tiles_512.h"

namespace edge_kit {
namespace {

constexpr int kTileRows = 16;         // rows of activations per tile register
constexpr int64_t kPanelGroups = 8;   // groups and
constexpr int64_t kPanelTiles = 4;    // weight tiles that stay in L1 while the rows meet them
constexpr int64_t kPanelRows = 256;   // rows whose running sums are held on the stack

// Operand of ldtilecfg.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tile registers 0 and 1 hold sums [rows, 16], 2 and 3 activations [rows, kGroup], 4 and 5 weights
// [kQuads, 16, 4].
void set_tiles(int rows) {
  TileConfig config;
  for (int pair = 0; pair < 3; ++pair) {
    for (int tile = 2 * pair; tile < 2 * pair + 2; ++tile) {
      config.row_bytes[tile] = pair == 1 ? kGroup : kQuadBytes;
      config.rows[tile] = static_cast<uint8_t>(pair == 2 ? kQuads : rows);
    }
  }
  __asm__ volatile("ldtilecfg %0" : : "m"(config));  // GCC 12's intrinsic reads the first 8 bytes only
}

using Dots = int32_t[kTileRows][kTileN];

// A block of rows as the panel's first group sees it.
struct RowBlock {
  const int8_t* values;  // rows row_bytes apart
  int64_t row_bytes;
  const float* scale;    // rows `groups` apart
  int64_t groups;
};

// The groups of one weight tile that a block of rows meets at once.
struct Panel {
  const int8_t* weights;
  int64_t whole, groups;    // groups that lie in the file in full, and all
  const int8_t* partial;    // the last one padded with zeros, where it does not
  const int8_t* next;       // what is to be prefetched meanwhile,
  int64_t next_lines;       // so many cache lines per two groups
};

// The intrinsics take numbers of tile registers only as literals.
void multiply_group(const RowBlock& x, int64_t g, const int8_t* weights, Dots& dots) {
  _tile_zero(0);
  _tile_loadd(2, x.values + g * kGroup, x.row_bytes);
  _tile_loadd(4, weights, kQuadBytes);
  _tile_dpbssd(0, 2, 4);
  _tile_stored(0, dots, kQuadBytes);
}

// Groups g and g + 1.
void multiply_two_groups(const RowBlock& x, int64_t g, const int8_t* weights, Dots* dots) {
  _tile_zero(0);
  _tile_loadd(2, x.values + g * kGroup, x.row_bytes);
  _tile_loadd(4, weights, kQuadBytes);
  _tile_dpbssd(0, 2, 4);
  _tile_zero(1);
  _tile_loadd(3, x.values + (g + 1) * kGroup, x.row_bytes);
  _tile_loadd(5, weights + kGroupBytes, kQuadBytes);
  _tile_dpbssd(1, 3, 5);
  _tile_stored(0, dots[0], kQuadBytes);
  _tile_stored(1, dots[1], kQuadBytes);
}

// sums[r] += scale[r] * dots[r]
template <int R>
void add_group(const RowBlock& x, int64_t g, const Dots& dots, __m512* sums) {
  EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
    const __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(dots[r]));
    sums[r] = _mm512_fmadd_ps(_mm512_set1_ps(x.scale[r * x.groups + g]), dot, sums[r]);
  }
}

// Adds R rows by one panel to `running` [R, 16]. The vector units add two groups while the tile unit
// multiplies the next two.
template <int R>
void multiply_panel(const RowBlock& x, const Panel& panel, float* running) {
  alignas(64) Dots dots[4];
  __m512 sums[R];
  EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) sums[r] = _mm512_load_ps(running + r * kTileN);
  const auto multiply_two = [&](int64_t g) {
    multiply_two_groups(x, g, panel.weights + g * kGroupBytes, dots + g % 4);
  };
  const int64_t pairs = panel.whole / 2;
  const int8_t* next = panel.next;
  if (pairs > 0) multiply_two(0);
  for (int64_t pair = 0; pair < pairs; ++pair) {
    for (int64_t line = 0; line < panel.next_lines; ++line, next += kQuadBytes) prefetch_far(next);
    const int64_t g = 2 * pair;
    if (pair + 1 < pairs) multiply_two(g + 2);
    add_group<R>(x, g, dots[g % 4], sums);
    add_group<R>(x, g + 1, dots[g % 4 + 1], sums);
  }
  for (int64_t g = 2 * pairs; g < panel.groups; ++g) {
    multiply_group(x, g, g < panel.whole ? panel.weights + g * kGroupBytes : panel.partial, dots[0]);
    add_group<R>(x, g, dots[0], sums);
  }
  EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) _mm512_store_ps(running + r * kTileN, sums[r]);
}

// One block of `rows` <= R rows.
template <int R>
void multiply_block(int64_t rows, const RowBlock& x, const Panel& panel, float* running) {
  if constexpr (R > 0) {
    if (rows == R) return multiply_panel<R>(x, panel, running);
    multiply_block<R - 1>(rows, x, panel, running);
  }
}

// Rows [first, last), at most kPanelRows, by `tiles` <= kPanelTiles weight tiles from output n on.
void multiply_tiles(const Weight& w, const QuantizedRows& x, int64_t first, int64_t last, int64_t n,
                    int64_t tiles, float* y, int64_t y_stride) {
  alignas(64) float running[kPanelRows / kTileRows * kPanelTiles][kTileRows][kTileN];
  alignas(64) int8_t partial[kPanelTiles][kGroupBytes] = {};
  const int64_t blocks = (last - first + kTileRows - 1) / kTileRows;
  __builtin_memset(running, 0, static_cast<size_t>(blocks * kPanelTiles) * sizeof *running);
  const int64_t tile_bytes = w.k * kTileN, whole = w.k / kGroup;
  const int8_t* weights = static_cast<const int8_t*>(w.data) + n * w.k;
  if (whole < x.groups) {
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t at = whole * kGroupBytes;
      __builtin_memcpy(partial[t], weights + t * tile_bytes + at, static_cast<size_t>(tile_bytes - at));
    }
    __asm__ volatile("" : : "r"(partial) : "memory");  // the intrinsics do not say that they read memory
  }
  int set_rows = 0;
  for (int64_t g = 0; g < x.groups; g += kPanelGroups) {
    const int64_t groups = smaller(kPanelGroups, x.groups - g);
    const bool ends = g + groups == x.groups;
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t row = first + block * kTileRows, rows = smaller(kTileRows, last - row);
      if (set_rows != rows) set_tiles(set_rows = static_cast<int>(rows));
      const RowBlock values = {x.values + (row * x.groups + g) * kGroup, x.groups * kGroup,
                               x.scale + row * x.groups + g, x.groups};
      for (int64_t t = 0; t < tiles; ++t) {
        const int8_t* tile = weights + t * tile_bytes;
        const int64_t lines = (2 * kQuads + blocks - 1) / blocks;
        const int8_t* next = ends ? tile + tiles * tile_bytes : tile + (g + groups) * kGroupBytes;
        const Panel panel = {tile + g * kGroupBytes, smaller(groups, whole - g), groups, partial[t],
                             next + block * lines * kQuadBytes * (kPanelGroups / 2), lines};
        float* sums = running[block * kPanelTiles + t][0];
        multiply_block<kTileRows>(rows, values, panel, sums);
        for (int64_t r = 0; r < rows && ends; ++r) {
          store_output(w, n + t * kTileN, _mm512_load_ps(sums + r * kTileN), y + (row + r) * y_stride);
        }
      }
    }
  }
}

}  // namespace

void linear_int8_amx(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride, int64_t n_begin,
                     int64_t n_end) {
  if (w.layout == WeightLayout::kRows || x.rows <= kStreamedRows) {
    return kAvx512VnniKernels.linear_int8(w, x, y, y_stride, n_begin, n_end);
  }
  for (int64_t n = n_begin; n < n_end; n += kPanelTiles * kTileN) {
    const int64_t tiles = smaller(kPanelTiles, (n_end - n) / kTileN);
    for (int64_t first = 0; first < x.rows; first += kPanelRows) {
      multiply_tiles(w, x, first, smaller(x.rows, first + kPanelRows), n, tiles, y, y_stride);
    }
  }
  _tile_release();
}

}  // namespace edge_kit

#endif  // __x86_64__
