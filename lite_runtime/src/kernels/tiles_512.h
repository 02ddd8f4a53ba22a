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
constexpr int kStreamedRows = 8;                  // up to here memory is the bound, and weights are streamed

void store_output(const Weight& w, int64_t n, __m512 sum, float* y) {
  const __m512 bias = w.bias ? _mm512_loadu_ps(w.bias + n) : _mm512_setzero_ps();
  _mm512_storeu_ps(y + n, _mm512_add_ps(_mm512_mul_ps(sum, _mm512_loadu_ps(w.scale + n)), bias));
}

}  // namespace
}  // namespace edge_kit
