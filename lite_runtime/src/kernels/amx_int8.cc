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

constexpr int kTileRows = 16;       // rows of activations per tile register
constexpr int64_t kPanelTiles = 4;  // whose panels stay in L1 while the rows meet them

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
using RunningSums = float[kRangeRows / kTileRows][kRangeTiles][kTileRows * kTileN];
using Partials = int8_t[kRangeTiles][kGroupBytes];

// `rows` <= kTileRows rows from `row` on, as the panel that begins with group g sees them.
struct RowBlock {
  RowBlock(const QuantizedRows& x, int64_t row, int64_t rows, int64_t g)
      : values(x.values + (row * x.groups + g) * kGroup), row_bytes(x.groups * kGroup) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < smaller(kPanelGroups, x.groups - g); ++i) {
        scale[i][r] = x.scale[(row + r) * x.groups + g + i];
      }
    }
  }

  const int8_t* values;  // rows row_bytes apart
  int64_t row_bytes;
  alignas(64) float scale[kPanelGroups][kTileRows] = {};  // 0 past the last row
};

// The groups of one weight tile that a block of rows meets at once.
struct Panel {
  const int8_t* weights;
  int64_t whole, groups;    // groups that lie in the file in full, and all
  const int8_t* partial;    // the last one padded with zeros, where it does not
  const int8_t* next;       // what is to be prefetched meanwhile,
  int64_t next_lines;       // so many cache lines per group
};

// The sums of group g, in tile register g % 2. The intrinsics take numbers of registers only as literals.
template <int kRegister>
void multiply_group(const RowBlock& x, int64_t g, const int8_t* weights) {
  const int8_t* values = x.values + g * kGroup;
  if constexpr (kRegister == 0) {
    _tile_zero(0);
    _tile_loadd(2, values, x.row_bytes);
    _tile_loadd(4, weights, kQuadBytes);
    _tile_dpbssd(0, 2, 4);
  } else {
    _tile_zero(1);
    _tile_loadd(3, values, x.row_bytes);
    _tile_loadd(5, weights, kQuadBytes);
    _tile_dpbssd(1, 3, 5);
  }
}

template <int kRegister>
void store_group(Dots& dots) {
  if constexpr (kRegister == 0) {
    _tile_stored(0, dots, kQuadBytes);
  } else {
    _tile_stored(1, dots, kQuadBytes);
  }
}

// sums[r] += scale[r] * dots[r]
void add_group(const float* scale, const Dots& dots, __m512* sums) {
  EDGE_KIT_UNROLL for (int r = 0; r < kTileRows; ++r) {
    const __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(dots[r]));
    sums[r] = _mm512_fmadd_ps(_mm512_set1_ps(scale[r]), dot, sums[r]);
  }
}

// From step g on, of a full panel: the tile unit multiplies group g while group g - 1 is stored and the
// vector units add group g - 2.
template <int64_t g>
inline void multiply_groups(const RowBlock& x, const Panel& panel, Dots* dots, __m512* sums) {
  if constexpr (g < kPanelGroups) {
    const int8_t* next = panel.next + g * panel.next_lines * kQuadBytes;
    for (int64_t line = 0; line < panel.next_lines; ++line) prefetch_far(next + line * kQuadBytes);
    multiply_group<g % 2>(x, g, panel.weights + g * kGroupBytes);
  }
  if constexpr (g >= 1 && g <= kPanelGroups) store_group<(g - 1) % 2>(dots[(g - 1) % 2]);
  if constexpr (g >= 2) add_group(x.scale[g - 2], dots[g % 2], sums);
  if constexpr (g < kPanelGroups + 1) multiply_groups<g + 1>(x, panel, dots, sums);
}

// Adds a block of rows by one panel to `running` [kTileRows, 16].
void multiply_panel(const RowBlock& x, const Panel& panel, float* running) {
  alignas(64) Dots dots[2];
  __m512 sums[kTileRows];
  EDGE_KIT_UNROLL for (int r = 0; r < kTileRows; ++r) sums[r] = _mm512_load_ps(running + r * kTileN);
  if (panel.whole == kPanelGroups) {
    multiply_groups<0>(x, panel, dots, sums);
  } else {
    for (int64_t g = 0; g < panel.groups; ++g) {
      multiply_group<0>(x, g, g < panel.whole ? panel.weights + g * kGroupBytes : panel.partial);
      store_group<0>(dots[0]);
      add_group(x.scale[g], dots[0], sums);
    }
  }
  EDGE_KIT_UNROLL for (int r = 0; r < kTileRows; ++r) _mm512_store_ps(running + r * kTileN, sums[r]);
}

// All rows of the range by one panel: tiles [t_begin, t_end) and the groups from g on.
void multiply_tiles(const TileRange& range, int64_t g, int64_t t_begin, int64_t t_end,
                    const Partials& partial, RunningSums& running) {
  const QuantizedRows& x = range.x;
  const int64_t groups = smaller(kPanelGroups, x.groups - g), whole = range.w.k / kGroup;
  const int64_t blocks = (range.last - range.first + kTileRows - 1) / kTileRows;
  const int64_t lines = (kQuads + blocks - 1) / blocks, tile_bytes = range.tile_bytes();
  const int8_t* after = range.after(g, g + groups, t_end);
  int set_rows = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t row = range.first + block * kTileRows, rows = smaller(kTileRows, range.last - row);
    if (set_rows != rows) set_tiles(set_rows = static_cast<int>(rows));
    const RowBlock values(x, row, rows, g);
    for (int64_t t = t_begin; t < t_end; ++t) {
      const int8_t* next = after + (t - t_begin) * tile_bytes + block * lines * kQuadBytes * kPanelGroups;
      const int8_t* weights = range.weights() + t * tile_bytes + g * kGroupBytes;
      const Panel panel = {weights, smaller(groups, whole - g), groups, partial[t], next, lines};
      float* sums = running[block][t];
      multiply_panel(values, panel, sums);
      for (int64_t r = 0; r < rows && g + groups == x.groups; ++r) {
        store_output(range.w, range.n + t * kTileN, _mm512_load_ps(sums + r * kTileN),
                     range.y + (row + r) * range.y_stride);
      }
    }
  }
}

void multiply_range(const TileRange& range) {
  alignas(64) RunningSums running;
  alignas(64) Partials partial;
  const int64_t blocks = (range.last - range.first + kTileRows - 1) / kTileRows;
  __builtin_memset(running, 0, static_cast<size_t>(blocks) * sizeof *running);
  const int64_t at = range.w.k / kGroup * kGroupBytes, rest = range.tile_bytes() - at;
  for (int64_t t = 0; t < range.tiles && rest > 0; ++t) {
    __builtin_memset(partial[t], 0, sizeof *partial);
    __builtin_memcpy(partial[t], range.weights() + t * range.tile_bytes() + at, static_cast<size_t>(rest));
  }
  __asm__ volatile("" : : "r"(partial) : "memory");  // the intrinsics do not say that they read memory
  for (int64_t g = 0; g < range.x.groups; g += kPanelGroups) {
    for (int64_t t = 0; t < range.tiles; t += kPanelTiles) {
      multiply_tiles(range, g, t, smaller(t + kPanelTiles, range.tiles), partial, running);
    }
  }
}

}  // namespace

void linear_int8_amx(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride, int64_t n_begin,
                     int64_t n_end) {
  if (w.layout == WeightLayout::kRows || x.rows <= kStreamedRows) {
    return kAvx512VnniKernels.linear_int8(w, x, y, y_stride, n_begin, n_end);
  }
  for_ranges(w, x, y, y_stride, n_begin, n_end, multiply_range);
  _tile_release();
}

}  // namespace edge_kit

#endif  // __x86_64__
