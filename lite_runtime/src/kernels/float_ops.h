// Element-wise kernels over `Lanes`, which the including ISA file defines.
#pragma once

#include "kernels.h"

namespace edge_kit {
namespace {

// The first `count` < 16 lanes; the others are zero.
template <typename T>
Lanes load_part(const T* p, int64_t count) {
  T buffer[Lanes::kCount] = {};
  __builtin_memcpy(buffer, p, static_cast<size_t>(count) * sizeof(T));
  return Lanes::load(buffer);
}

template <typename T>
void store_part(Lanes x, T* p, int64_t count) {
  T buffer[Lanes::kCount];
  x.store(buffer);
  __builtin_memcpy(p, buffer, static_cast<size_t>(count) * sizeof(T));
}

// y[i] = f(a[i], b[i]).
template <typename F>
void map(const float* a, const float* b, float* y, int64_t n, F f) {
  int64_t i = 0;
  for (; i + Lanes::kCount <= n; i += Lanes::kCount) f(Lanes::load(a + i), Lanes::load(b + i)).store(y + i);
  if (i < n) store_part(f(load_part(a + i, n - i), load_part(b + i, n - i)), y + i, n - i);
}

// e^x with a relative error below 2e-7; 0 below -87.7 and infinity above 88.3, a little before fp32 ends.
// x = n ln2 + r with |r| <= ln2 / 2, e^r by its Taylor series; ln2 in two parts keeps r exact.
Lanes exp(Lanes x) {
  x = min(Lanes::set1(89.0f), max(Lanes::set1(-88.0f), x));
  const Lanes n = round(x * Lanes::set1(1.44269504f));
  const Lanes r = fma(n, Lanes::set1(-1.42860682e-6f), fma(n, Lanes::set1(-0.693145752f), x));
  Lanes sum = Lanes::set1(1.0f / 5040);
  sum = fma(sum, r, Lanes::set1(1.0f / 720));
  sum = fma(sum, r, Lanes::set1(1.0f / 120));
  sum = fma(sum, r, Lanes::set1(1.0f / 24));
  sum = fma(sum, r, Lanes::set1(1.0f / 6));
  sum = fma(sum, r, Lanes::set1(0.5f));
  sum = fma(sum, r, Lanes::set1(1.0f));
  sum = fma(sum, r, Lanes::set1(1.0f));
  return sum * exp2_whole(n);
}

void rms_norm(const float* x, const float* weight, float eps, int64_t k, float* y) {
  Lanes squares = Lanes::set1(0.0f);
  int64_t i = 0;
  const auto add_square = [&](Lanes part) { squares = squares + part * part; };
  for (; i + Lanes::kCount <= k; i += Lanes::kCount) add_square(Lanes::load(x + i));
  if (i < k) add_square(load_part(x + i, k - i));
  const float inverse = 1.0f / __builtin_sqrtf(squares.sum() / static_cast<float>(k) + eps);
  map(x, weight, y, k, [&](Lanes a, Lanes b) { return a * Lanes::set1(inverse) * b; });
}

void rope(float* x, const float* cos, const float* sin, int64_t heads, int64_t dim) {
  const int64_t half = dim / 2;
  for (int64_t h = 0; h < heads; ++h, x += dim) {
    int64_t i = 0;
    for (; i + Lanes::kCount <= half; i += Lanes::kCount) {
      const Lanes a = Lanes::load(x + i), b = Lanes::load(x + half + i);
      (a * Lanes::load(cos + i) - b * Lanes::load(sin + i)).store(x + i);
      (b * Lanes::load(cos + half + i) + a * Lanes::load(sin + half + i)).store(x + half + i);
    }
    for (; i < half; ++i) {
      const float a = x[i], b = x[half + i];
      x[i] = a * cos[i] - b * sin[i];
      x[half + i] = b * cos[half + i] + a * sin[half + i];
    }
  }
}

void silu_mul(const float* gate, const float* up, float* y, int64_t n) {
  const Lanes one = Lanes::set1(1.0f), zero = Lanes::set1(0.0f);
  map(gate, up, y, n, [&](Lanes g, Lanes u) { return g / (one + exp(zero - g)) * u; });
}

void add(const float* a, const float* b, float* y, int64_t n) {
  map(a, b, y, n, [](Lanes x, Lanes z) { return x + z; });
}

void to_f16(const float* x, uint16_t* y, int64_t n) {
  int64_t i = 0;
  for (; i + Lanes::kCount <= n; i += Lanes::kCount) Lanes::load(x + i).store(y + i);
  if (i < n) store_part(load_part(x + i, n - i), y + i, n - i);
}

template <int S>
uint64_t read_streams(const uint8_t* data, size_t bytes) {
  constexpr size_t kStep = 256;
  const size_t part = bytes / S;
  Words sums[S][2];
  for (size_t at = 0; at < part; at += kStep) {
    EDGE_KIT_UNROLL for (int s = 0; s < S; ++s) {
      const uint8_t* p = data + static_cast<size_t>(s) * part + at;
      for (int line = 0; line < 4; ++line) prefetch(p + kPrefetchBytes + line * 64);
      sums[s][0].add(p);
      sums[s][1].add(p + 64);
      sums[s][0].add(p + 128);
      sums[s][1].add(p + 192);
    }
  }
  uint64_t total = 0;
  for (int s = 0; s < S; ++s) total += sums[s][0].total() + sums[s][1].total();
  return total;
}

uint64_t read_stream(const uint8_t* data, size_t bytes, int streams) {
  if (streams == 8) return read_streams<8>(data, bytes);
  if (streams == 4) return read_streams<4>(data, bytes);
  return read_streams<1>(data, bytes);
}

}  // namespace
}  // namespace edge_kit
