// AVX2 with FMA and F16C. vpmaddubsw multiplies unsigned by signed bytes and saturates sums of two at 16
// bits: |w| * sign(w) x stays within 2 * 128 * 127 = 32512, so nothing is lost.
#if defined(__x86_64__)

#include <immintrin.h>

#include "lanes_avx2.h"
// Kernels over `Lanes`, compiled here with this file's flags.
#include "attention.h"
#include "linear_float.h"
#include "paths.h"
#include "tiles_256.h"

namespace edge_kit {
namespace {

struct Dot {
  static __m256i prepare(__m256i weights) { return _mm256_abs_epi8(weights); }
  static __m256i start(int32_t) { return _mm256_setzero_si256(); }
  static __m256i add(__m256i sum, __m256i weights, __m256i magnitudes, __m256i values) {
    const __m256i pairs = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(values, weights));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};

}  // namespace

const Kernels kAvx2Kernels = {
    "avx2", quantize_row, linear_256<Dot, 2>, linear_float, rms_norm, rope, silu_mul, add,
    attention<uint16_t, uint16_t>, attention<float, float>, attention<int8_t, uint16_t>, fold_partials,
    quantize_plane, to_f16, read_stream,
};

}  // namespace edge_kit

#endif  // __x86_64__
