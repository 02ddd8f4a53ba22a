// Kernels: the arithmetic of the decoder, one table of function pointers filled once per process.
//
// Owner: every pointer is borrowed for the length of the call. Threads: all functions are pure and may
// run at the same time on disjoint outputs. Shapes are given as [rows, columns], row-major.
//
// INT8 linear, the contract that every ISA path keeps:
//   * activations are quantized per row in groups of kGroup along K (`quantize_row`);
//   * within a group the dot product is exact in int32, so all paths hold the same accumulators;
//   * outside, y = fp32 sum over groups, in order, of fma(scale[g], dot[g], sum), then * weight scale,
//     + bias.
// Lanes are outputs, so a row's result depends neither on the other rows nor on how work was cut.
//
// All paths give equal floats in INT8 mode, not only equal integers: one bit of difference before an
// activation is rounded grows layer by layer into other logits. So every order below is part of the contract;
// edge_kit/arithmetic.py is the same in NumPy. Only `linear_float` is free in its order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edge_kit {

constexpr int64_t kGroup = 64;       // activations per quantization group
constexpr int64_t kTileN = 16;       // outputs per weight tile
constexpr int64_t kTileK = 4;        // inputs per weight tile
constexpr int kStreamedRows = 8;     // up to here memory is the bound: weights are read in long streams
constexpr int64_t kCacheBlock = 64;  // tokens per block of the KV cache
constexpr int64_t kSumLanes = 16;    // running sums of a reduction; then lanes i and i + 8, 4, 2, 1 are added
constexpr int64_t kMaxHeadDim = 512;  // attention keeps a block of keys on the stack; planners refuse more

enum class WeightLayout {
  kTiles,  // [N/16, K/4, 16, 4], needs N % 16 == 0 and K % 4 == 0
  kRows,   // [N, K]
};

// One linear layer's weight as it lies in the mapped file.
struct Weight {
  const void* data;       // int8 or fp32
  const float* scale;     // [N], null for fp32 weights
  const float* bias;      // [N] or null
  int64_t n;              // outputs
  int64_t k;              // inputs
  WeightLayout layout;
  bool is_int8;           // fp32 weights are always kRows
};

// Activations quantized to int8 in groups of kGroup.
struct QuantizedRows {
  const int8_t* values;   // [rows, groups * kGroup], zero padded past k, 64-byte aligned
  const float* scale;     // [rows, groups]
  const int32_t* offset;  // [rows, groups]: -128 * sum of the group's values, see `linear_int8`
  int64_t rows;
  int64_t groups;
};

// The queries of consecutive positions of one session, all in one block of its cache, for one key/value head.
struct AttentionArgs {
  const float* q;                // [rows, group, dim] with q_stride floats from row to row
  int64_t q_stride;
  int64_t rows;
  int64_t group;                 // query heads that share this key/value head
  int64_t dim;
  int64_t first_visible;         // keys visible to row 0; row r sees first_visible + r
  const uint8_t* const* blocks;  // the full blocks before the rows' own
  int64_t keys_at, values_at;    // bytes from the start of such a block to this head's keys and values
  const void* own_keys;          // of the rows' own block; never int8
  const void* own_values;
  float scale;                   // multiplies q.k
  float* out;                    // [rows, group, dim] with out_stride floats from row to row
  int64_t out_stride;
  // To share one head's blocks among threads: not null = the blocks [block_begin, block_end) only, their
  // partials to [block, rows * group, partial_floats(dim)], and `out` is left to `fold_partials`.
  float* partials;
  int64_t block_begin, block_end;

  int64_t n_blocks() const { return (first_visible - 1) / kCacheBlock + 1; }
};

// A partial: largest score, sum of exponentials, and from kPartialValues on the weighted values [dim].
constexpr int64_t kPartialValues = 16;
constexpr int64_t partial_floats(int64_t dim) { return kPartialValues + (dim + 15) / 16 * 16; }

struct Kernels {
  // As accepted by EDGE_KIT_ISA: "scalar"; on x86-64 "avx2", "avx-vnni", "avx512-vnni", "amx-int8"; on 64-bit
  // ARM "neon", "neon-dotprod", "neon-i8mm".
  const char* name;

  // x [k] -> values [groups * kGroup], scale [groups], offset [groups].
  // scale = max|x| / 127; values = round-half-even(x * (127 / max|x|)), within +-127; an all-zero group
  // gives scale 0 and zeros, and so does one below 2^-120, where 127 / max would overflow. A group with a NaN
  // or an infinity gives zeros and scale NaN (so that the output shows it).
  void (*quantize_row)(const float* x, int64_t k, int8_t* values, float* scale, int32_t* offset);

  // y[r, n] = sum_k x[r, k] * w[n, k] * scale[n] + bias[n] for n in [n_begin, n_end), all rows.
  // y has y_stride floats from row to row, column n of the whole output at y[n].
  // n_begin is a multiple of kTileN; n_end too, or N.
  // A path that multiplies unsigned by signed bytes reads w ^ 0x80 as unsigned and starts each group's
  // accumulator at QuantizedRows::offset.
  void (*linear_int8)(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride,
                      int64_t n_begin, int64_t n_end);

  // The same with fp32 activations x [rows, k] (x_stride floats apart): the exact mode, and fp32 weights.
  // For int8 weights: y = (sum_k x * float(w)) * scale + bias.
  void (*linear_float)(const Weight& w, const float* x, int64_t x_stride, int64_t rows, float* y,
                       int64_t y_stride, int64_t n_begin, int64_t n_end);

  // y [k] = x * (1 / sqrt(sum(x^2) / k + eps)) * weight, each operation rounded, the sum in kSumLanes lanes.
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t k, float* y);

  // In place on one row x [heads, dim]: x * cos + rotate_half(x) * sin, cos/sin [dim];
  // rotate_half(x) = concat(-x[dim/2:], x[:dim/2]).
  void (*rope)(float* x, const float* cos, const float* sin, int64_t heads, int64_t dim);

  // y[i] = gate[i] / (1 + exp(-gate[i])) * up[i]. y may be gate or up. exp is that of reference.cc, step by
  // step.
  void (*silu_mul)(const float* gate, const float* up, float* y, int64_t n);

  void (*add)(const float* a, const float* b, float* y, int64_t n);  // y may be a or b

  // Causal softmax attention of one key/value head. Each block of keys gives a partial (max, sum,
  // weighted values); partials are folded in block order, so a row's result does not depend on how the
  // rows were cut. Scores are fp32, a chain of fma along dim; values a chain of fma along the keys of a
  // block; the sum of a block's exponentials is taken in kSumLanes lanes.
  // Keys lie as [dim, kCacheBlock], values as [kCacheBlock, dim]. In `attention_int8` the blocks before the
  // rows' own are planes of `quantize_plane`, read as fp32(value) * scale, rounded; the own block is fp16.
  void (*attention_f16)(const AttentionArgs& args);
  void (*attention_f32)(const AttentionArgs& args);
  void (*attention_int8)(const AttentionArgs& args);
  void (*fold_partials)(const AttentionArgs& args);

  // fp16 x [rows, columns] -> int8 [rows, columns] and behind it fp32 scale [rows]: scale = max|x| / 127,
  // value = round-half-even(x * (127 / max|x|)); a row of zeros gives scale 0, one with a NaN or an infinity
  // zeros and scale NaN. Keys get a scale per channel, values one per token.
  // rows * columns is a multiple of 64.
  void (*quantize_plane)(const uint16_t* x, int64_t rows, int64_t columns, int8_t* plane);

  void (*to_f16)(const float* x, uint16_t* y, int64_t n);  // round to nearest even

  // Reads `bytes` (multiple of 4096) in `streams` (1, 4 or 8) parallel streams; returns a checksum so that
  // nothing is optimized away (the sum of all 64-bit words). Best of the variants = the machine's read
  // bandwidth.
  uint64_t (*read_stream)(const uint8_t* data, size_t bytes, int streams);
};

// The path for this CPU: the best one, or what EDGE_KIT_ISA names. Never null.
// `find_kernels(name)` gives null for an unknown name or one that this CPU cannot run.
const Kernels* find_kernels(const char* name);
const Kernels* best_kernels();
// Names of the paths this CPU can run, best first, ended by null.
const char* const* available_kernels();

}  // namespace edge_kit
