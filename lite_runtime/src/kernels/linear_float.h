// Linear layers with fp32 activations over `Lanes`: the exact mode, and fp32 weights.
#pragma once

#include "float_ops.h"

namespace edge_kit {
namespace {

// y[n] = sum * scale[n] + bias[n].
float finish(const Weight& w, int64_t n, float sum) {
  return sum * (w.scale ? w.scale[n] : 1.0f) + (w.bias ? w.bias[n] : 0.0f);
}

// R rows by one tile: lanes are outputs, inputs in order.
template <int R>
void float_tile(const Weight& w, const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t n) {
  const int8_t* quad = static_cast<const int8_t*>(w.data) + n * w.k;
  Lanes sums[R];
  EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) sums[r] = Lanes::set1(0.0f);
  for (int64_t k = 0; k < w.k; k += kTileK, quad += kTileK * kTileN) {
    Lanes inputs[kTileK];
    Lanes::load_quad(quad, inputs);
    EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
      EDGE_KIT_UNROLL for (int i = 0; i < kTileK; ++i) {
        sums[r] = fma(Lanes::set1(x[r * x_stride + k + i]), inputs[i], sums[r]);
      }
    }
  }
  EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
    float out[kTileN];
    sums[r].store(out);
    for (int64_t i = 0; i < kTileN; ++i) y[r * y_stride + n + i] = finish(w, n + i, out[i]);
  }
}

// R rows by one output whose weights lie in a row: lanes are inputs.
template <int R, typename T>
void float_row(const Weight& w, const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t n) {
  const T* weights = static_cast<const T*>(w.data) + n * w.k;
  Lanes sums[R];
  EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) sums[r] = Lanes::set1(0.0f);
  int64_t k = 0;
  for (; k + Lanes::kCount <= w.k; k += Lanes::kCount) {
    const Lanes inputs = Lanes::load(weights + k);
    EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
      sums[r] = fma(Lanes::load(x + r * x_stride + k), inputs, sums[r]);
    }
  }
  if (k < w.k) {
    const Lanes inputs = load_part(weights + k, w.k - k);
    EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) {
      sums[r] = fma(load_part(x + r * x_stride + k, w.k - k), inputs, sums[r]);
    }
  }
  EDGE_KIT_UNROLL for (int r = 0; r < R; ++r) y[r * y_stride + n] = finish(w, n, sums[r].sum());
}

template <int R>
void float_rows(const Weight& w, const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t n) {
  if (w.layout == WeightLayout::kTiles) return float_tile<R>(w, x, x_stride, y, y_stride, n);
  for (int64_t end = smaller(n + kTileN, w.n); n < end; ++n) {
    if (w.is_int8) {
      float_row<R, int8_t>(w, x, x_stride, y, y_stride, n);
    } else {
      float_row<R, float>(w, x, x_stride, y, y_stride, n);
    }
  }
}

void linear_float(const Weight& w, const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride,
                  int64_t n_begin, int64_t n_end) {
  for (int64_t n = n_begin; n < n_end; n += kTileN) {
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) float_rows<4>(w, x + r * x_stride, x_stride, y + r * y_stride, y_stride, n);
    for (; r < rows; ++r) float_rows<1>(w, x + r * x_stride, x_stride, y + r * y_stride, y_stride, n);
  }
}

}  // namespace
}  // namespace edge_kit
