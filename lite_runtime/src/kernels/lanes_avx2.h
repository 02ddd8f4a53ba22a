// Sixteen fp32 lanes in two AVX registers. Sixteen, as in lanes_avx512.h, so that sums are taken in the same
// order and the x86 paths give equal floats.
#pragma once

#include <immintrin.h>

#include "isa_common.h"

namespace edge_kit {
namespace {

struct Lanes {
  static constexpr int kCount = 16;
  // Lanes per register block of the attention product, for a number of queries.
  static constexpr int block(int queries, bool) { return queries <= 1 ? 4 : queries <= 3 ? 2 : 1; }

  __m256 lo, hi;

  static Lanes set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static Lanes load(const uint16_t* p) {
    const __m128i* halves = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
  }
  static Lanes load(const int8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
  }
  // The four inputs [16, 4] of one weight quad, each with its 16 outputs.
  static void load_quad(const int8_t* p, Lanes* inputs) {
    const __m256i* halves = reinterpret_cast<const __m256i*>(p);
    const __m256i a = _mm256_loadu_si256(halves), b = _mm256_loadu_si256(halves + 1);
    inputs[0] = from_high_bytes(_mm256_slli_epi32(a, 24), _mm256_slli_epi32(b, 24));
    inputs[1] = from_high_bytes(_mm256_slli_epi32(a, 16), _mm256_slli_epi32(b, 16));
    inputs[2] = from_high_bytes(_mm256_slli_epi32(a, 8), _mm256_slli_epi32(b, 8));
    inputs[3] = from_high_bytes(a, b);
  }
  void store(float* p) const {
    _mm256_storeu_ps(p, lo);
    _mm256_storeu_ps(p + 8, hi);
  }
  void store(uint16_t* p) const {
    __m128i* halves = reinterpret_cast<__m128i*>(p);
    _mm_storeu_si128(halves, _mm256_cvtps_ph(lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(halves + 1, _mm256_cvtps_ph(hi, _MM_FROUND_TO_NEAREST_INT));
  }
  // [sum of lanes i and i + 8], then 4, 2, 1.
  float sum() const {
    const __m256 eight = _mm256_add_ps(lo, hi);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  float max() const {
    const __m256 eight = _mm256_max_ps(lo, hi);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }

 private:
  static Lanes from_high_bytes(__m256i a, __m256i b) {
    return {_mm256_cvtepi32_ps(_mm256_srai_epi32(a, 24)), _mm256_cvtepi32_ps(_mm256_srai_epi32(b, 24))};
  }
};

Lanes operator+(Lanes a, Lanes b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
Lanes operator-(Lanes a, Lanes b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
Lanes operator*(Lanes a, Lanes b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
Lanes operator/(Lanes a, Lanes b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
// A NaN in b passes.
Lanes min(Lanes a, Lanes b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
Lanes max(Lanes a, Lanes b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
Lanes round(Lanes a) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, kNearest), _mm256_round_ps(a.hi, kNearest)};
}

__m256 exp2_whole(__m256 n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
// 2^n for whole n in [-127, 128]; 0 and infinity at the ends.
Lanes exp2_whole(Lanes n) { return {exp2_whole(n.lo), exp2_whole(n.hi)}; }

// Running sum of 64-bit words, 64 bytes at a time.
struct Words {
  __m256i lo = _mm256_setzero_si256(), hi = _mm256_setzero_si256();
  void add(const uint8_t* p) {
    const __m256i* halves = reinterpret_cast<const __m256i*>(p);
    lo = _mm256_add_epi64(lo, _mm256_loadu_si256(halves));
    hi = _mm256_add_epi64(hi, _mm256_loadu_si256(halves + 1));
  }
  uint64_t total() const {
    uint64_t parts[4], sum = 0;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(parts), _mm256_add_epi64(lo, hi));
    for (const uint64_t part : parts) sum += part;
    return sum;
  }
};

}  // namespace
}  // namespace edge_kit
