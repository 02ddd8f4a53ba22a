// 256-bit kernels that every x86 vector path shares: quantization, and INT8 linear layers with row-major
// weights.
#pragma once

#include <immintrin.h>

#include "isa_common.h"
#include "kernels.h"
#include "quantize_row.h"

namespace edge_kit {
namespace {

int32_t largest_lane(__m256i x) {
  const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

constexpr int64_t kBytes = 32;  // in one register

// x [kBytes] * inverse, rounded, as bytes to `values`; returns the whole numbers added lane by lane.
__m256i quantize_bytes(const float* x, __m256 inverse, int8_t* values) {
  __m256i whole[4];
  EDGE_KIT_UNROLL for (int i = 0; i < 4; ++i) {
    whole[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i * 8), inverse));
  }
  const __m256i low = _mm256_packs_epi32(whole[0], whole[1]), high = _mm256_packs_epi32(whole[2], whole[3]);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packing interleaves 128-bit halves
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(values), bytes);
  return _mm256_add_epi32(_mm256_add_epi32(whole[0], whole[1]), _mm256_add_epi32(whole[2], whole[3]));
}

// x [kGroup].
void quantize_group(const float* x, int8_t* values, float* scale, int32_t* offset) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i largest_bits = _mm256_setzero_si256();  // magnitudes order like their bits, NaN above infinity
  EDGE_KIT_UNROLL for (int64_t i = 0; i < kGroup; i += 8) {
    const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(x + i));
    largest_bits = _mm256_max_epi32(largest_bits, _mm256_and_si256(bits, magnitude));
  }
  const int32_t bits = largest_lane(largest_bits);
  float largest;
  __builtin_memcpy(&largest, &bits, sizeof largest);
  const bool finite = bits < 0x7f800000;
  if (!finite || largest < 0x1p-120f) {
    __builtin_memset(values, 0, kGroup);
    *scale = finite ? 0.0f : __builtin_nanf("");
    *offset = 0;
    return;
  }
  const __m256 inverse = _mm256_set1_ps(127.0f / largest);
  __m256i sums = _mm256_setzero_si256();
  EDGE_KIT_UNROLL for (int64_t i = 0; i < kGroup; i += kBytes) {
    sums = _mm256_add_epi32(sums, quantize_bytes(x + i, inverse, values + i));
  }
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  *offset = -128 * _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
  *scale = largest / 127.0f;
}

// Sums of the lanes of each of eight registers.
__m256i sum_each(const __m256i* x) {
  const __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(x[0], x[1]), _mm256_hadd_epi32(x[2], x[3]));
  const __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(x[4], x[5]), _mm256_hadd_epi32(x[6], x[7]));
  return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

// `Dot` says how four signed products are added per 32-bit lane:
//   prepare(w)                     what the multiplication reads for weights w
//   add(sums, w, prepare(w), x)    sums + the products
//   start(offset)                  what to begin a group's sums with, given QuantizedRows::offset
//
// Where unsigned bytes are multiplied by signed ones, the weights are read as w ^ 0x80 = w + 128.
struct UnsignedWeights {
  static __m256i prepare(__m256i weights) {
    return _mm256_xor_si256(weights, _mm256_set1_epi8(static_cast<char>(0x80)));
  }
  static __m256i start(int32_t offset) { return _mm256_set1_epi32(offset); }
};

// Eight outputs at a time, group by group: products along K, then summed so that lanes are outputs.
template <typename Dot>
void linear_rows(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride, int64_t n_begin,
                 int64_t n_end) {
  constexpr int64_t kOutputs = 8;
  const int8_t* weights = static_cast<const int8_t*>(w.data);
  for (int64_t n = n_begin; n < n_end; n += kOutputs) {
    const int64_t count = smaller(kOutputs, n_end - n);
    for (int64_t r = 0; r < x.rows; ++r) {
      __m256 sums = _mm256_setzero_ps();
      for (int64_t g = 0; g < x.groups; ++g) {
        const int64_t at = r * x.groups + g;
        __m256i products[kOutputs] = {};
        for (int64_t k = g * kGroup; k < smaller(w.k, (g + 1) * kGroup); k += kBytes) {
          const int8_t* from = x.values + r * x.groups * kGroup + k;
          const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
          for (int64_t i = 0; i < count; ++i) {
            const int8_t* row = weights + (n + i) * w.k + k;
            alignas(32) int8_t tail[kBytes] = {};
            if (k + kBytes > w.k) {
              __builtin_memcpy(tail, row, static_cast<size_t>(w.k - k));
              row = tail;
            }
            const __m256i part = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
            products[i] = Dot::add(products[i], part, Dot::prepare(part), values);
          }
        }
        const __m256i dot = _mm256_add_epi32(Dot::start(x.offset[at]), sum_each(products));
        sums = _mm256_fmadd_ps(_mm256_set1_ps(x.scale[at]), _mm256_cvtepi32_ps(dot), sums);
      }
      float out[kOutputs];
      _mm256_storeu_ps(out, sums);
      for (int64_t i = 0; i < count; ++i) {
        y[r * y_stride + n + i] = out[i] * w.scale[n + i] + (w.bias ? w.bias[n + i] : 0.0f);
      }
    }
  }
}

}  // namespace
}  // namespace edge_kit
