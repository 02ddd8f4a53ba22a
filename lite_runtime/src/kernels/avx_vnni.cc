// AVX2 with AVX-VNNI: vpdpbusd multiplies unsigned by signed bytes and adds four products in 32 bits. Weights
// are read as w ^ 0x80 = w + 128, and each group's sum starts at -128 * sum(x).
#if defined(__x86_64__)

#include <immintrin.h>

#include "paths.h"
#include "tiles_256.h"

namespace edge_kit {
namespace {

struct Dot : UnsignedWeights {
  static __m256i add(__m256i sum, __m256i, __m256i weights, __m256i values) {
    return _mm256_dpbusd_avx_epi32(sum, weights, values);
  }
};

}  // namespace

void linear_int8_avx_vnni(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride,
                          int64_t n_begin, int64_t n_end) {
  linear_256<Dot, 3>(w, x, y, y_stride, n_begin, n_end);
}

}  // namespace edge_kit

#endif  // __x86_64__
