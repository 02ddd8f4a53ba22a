// Sixteen fp32 lanes in one AVX-512 register; the same operations as lanes_avx2.h.
#pragma once

#include <immintrin.h>

#include "isa_common.h"

namespace edge_kit {
namespace {

struct Lanes {
  static constexpr int kCount = 16;
  // Lanes per register block of the attention product, for a number of queries. What comes from the cache
  // itself is best read by whole lines.
  static constexpr int block(int queries, bool from_cache) {
    return queries <= 2 ? 8 : queries <= 3 || from_cache ? 4 : 2;
  }

  __m512 v;

  static Lanes set1(float x) { return {_mm512_set1_ps(x)}; }
  static Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Lanes load(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static Lanes load(const int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
  }
  // The four inputs [16, 4] of one weight quad, each with its 16 outputs.
  static void load_quad(const int8_t* p, Lanes* inputs) {
    const __m512i quad = _mm512_loadu_si512(p);
    inputs[0].v = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(quad, 24), 24));
    inputs[1].v = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(quad, 16), 24));
    inputs[2].v = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(quad, 8), 24));
    inputs[3].v = _mm512_cvtepi32_ps(_mm512_srai_epi32(quad, 24));
  }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store(uint16_t* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  // [sum of lanes i and i + 8], then 4, 2, 1.
  float sum() const {
    const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  float max() const { return _mm512_reduce_max_ps(v); }
};

Lanes operator+(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
Lanes operator-(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
Lanes operator*(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
Lanes operator/(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// A NaN in b passes.
Lanes min(Lanes a, Lanes b) { return {_mm512_min_ps(a.v, b.v)}; }
Lanes max(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
Lanes round(Lanes a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// 2^n for whole n in [-127, 128]; 0 and infinity at the ends.
Lanes exp2_whole(Lanes n) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
}

// Running sum of 64-bit words, 64 bytes at a time.
struct Words {
  __m512i v = _mm512_setzero_si512();
  void add(const uint8_t* p) { v = _mm512_add_epi64(v, _mm512_loadu_si512(p)); }
  uint64_t total() const {
    uint64_t parts[8], sum = 0;
    _mm512_storeu_si512(parts, v);
    for (const uint64_t part : parts) sum += part;
    return sum;
  }
};

}  // namespace
}  // namespace edge_kit
