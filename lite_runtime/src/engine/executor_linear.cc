// Linears and MLPs, cut along their outputs: down_proj starts when all of its input is there.
#include <algorithm>
#include <variant>

#include "engine/executor.h"

namespace edge_kit {

void Executor::QuantizedBuffer::allocate(int64_t groups) {
  values = make_aligned<int8_t>(groups * kGroup);
  scales = make_aligned<float>(groups);
  offsets = make_aligned<int32_t>(groups);
}

QuantizedRows Executor::QuantizedBuffer::rows(int64_t rows, int64_t k) const {
  return {values.get(), scales.get(), offsets.get(), rows, groups_of(k)};
}

bool Executor::needs_quantized(const LinearStep& step) const {
  return !exact_ &&
         std::any_of(step.weights.begin(), step.weights.end(), [](const Weight& w) { return w.is_int8; });
}

void Executor::quantize(const LinearStep& step, int64_t row) {
  const int64_t k = step.weights.front().k, at = row * groups_of(k);
  kernels_.quantize_row(buffer(step.input).row(row), k, quantized_.values.get() + at * kGroup,
                        quantized_.scales.get() + at, quantized_.offsets.get() + at);
}

// The tiles of all weights of the step stand in one line that is cut into few contiguous ranges: long streams
// of weights for every thread.
void Executor::run_linear(const LinearStep& step, const QuantizedBuffer& quantized) {
  int64_t tiles = 0;
  for (const Weight& w : step.weights) tiles += round_up(w.n, kTileN) / kTileN;
  const int64_t work = tiles * kTileN * step.weights.front().k * rows_;
  if (work < kTinyWork * 4) return run_tiles(step, quantized, 0, tiles);
  const int64_t units = std::min<int64_t>({tiles, work / kTinyWork, pool_.n_threads() * kUnitsPerThread});
  share(units, [&](int64_t unit) {
    run_tiles(step, quantized, tiles * unit / units, tiles * (unit + 1) / units);
  });
}

void Executor::run_tiles(const LinearStep& step, const QuantizedBuffer& quantized, int64_t tile_begin,
                         int64_t tile_end) {
  int64_t first = 0;  // tile of the weight at hand
  for (size_t i = 0; i < step.weights.size(); ++i) {
    const Weight& w = step.weights[i];
    const int64_t tiles = round_up(w.n, kTileN) / kTileN;
    const int64_t begin = std::max(tile_begin, first) - first,
                  end = std::min(tile_end, first + tiles) - first;
    first += tiles;
    if (begin >= end) continue;
    const int64_t n_begin = begin * kTileN, n_end = std::min(end * kTileN, w.n);
    const Buffer& y = buffer(step.outputs[i]);
    if (w.is_int8 && !exact_) {
      kernels_.linear_int8(w, quantized.rows(rows_, w.k), y.data, y.stride, n_begin, n_end);
    } else {
      const Buffer& x = buffer(step.input);
      kernels_.linear_float(w, x.data, x.stride, rows_, y.data, y.stride, n_begin, n_end);
    }
  }
}

// The MLP that begins with step `first`, from its quantized input on.
void Executor::run_mlp(size_t first) {
  const LinearStep& gate_up = std::get<LinearStep>(plan_.steps[first].op);
  const SiluMulStep& activation = std::get<SiluMulStep>(plan_.steps[first + 1].op);
  const int64_t groups = groups_of(activation.width);
  const int64_t units = std::min<int64_t>(groups, pool_.n_threads() * kUnitsPerThread);
  share(units, [&](int64_t unit) {
    const int64_t begin = groups * unit / units, end = groups * (unit + 1) / units;
    for (int64_t g = begin; g < end; ++g) run_mlp_columns(gate_up, activation, g, begin * kGroup * rows_);
  });
  if (profile_ != nullptr) profile_->lap_linear(first, rows_);
  run_linear(std::get<LinearStep>(plan_.steps[first + 2].op), quantized_mlp_);
  if (profile_ != nullptr) profile_->lap_linear(first + 2, rows_);
}

// All rows of one group of columns, up to the quantized activation. The buffers of gate and up lend a place to
// hold them, small enough to stay in the cache: from `scratch` on, [rows, kGroup].
void Executor::run_mlp_columns(const LinearStep& gate_up, const SiluMulStep& activation, int64_t group,
                               int64_t scratch) {
  const int64_t n = group * kGroup, groups = groups_of(activation.width);
  for (size_t i = 0; i < gate_up.weights.size(); ++i) {
    Weight w = gate_up.weights[i];  // these columns of it
    w.data = static_cast<const int8_t*>(w.data) + n * w.k;
    w.scale += n;
    if (w.bias != nullptr) w.bias += n;
    w.n = kGroup;
    float* y = buffer(gate_up.outputs[i]).data + scratch;
    kernels_.linear_int8(w, quantized_.rows(rows_, w.k), y, kGroup, 0, kGroup);
  }
  float* gate = buffer(activation.gate).data + scratch;
  kernels_.silu_mul(gate, buffer(activation.up).data + scratch, gate, rows_ * kGroup);
  for (int64_t row = 0; row < rows_; ++row) {
    const int64_t at = row * groups + group;
    kernels_.quantize_row(gate + row * kGroup, kGroup, quantized_mlp_.values.get() + at * kGroup,
                          quantized_mlp_.scales.get() + at, quantized_mlp_.offsets.get() + at);
  }
}

}  // namespace edge_kit
