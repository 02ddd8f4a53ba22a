// What the files of the ISAs give to dispatch. The tables are constant-initialized: no code of an ISA file
// runs before dispatch.
#pragma once

#include "kernels.h"

namespace edge_kit {

extern const Kernels kScalarKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512VnniKernels;

// `linear_int8` of the paths that have nothing else of their own: over AVX2, and over AVX512-VNNI.
void linear_int8_avx_vnni(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride,
                          int64_t n_begin, int64_t n_end);
void linear_int8_amx(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride, int64_t n_begin,
                     int64_t n_end);
#elif defined(__aarch64__)
extern const Kernels kNeonKernels;

// The same over NEON.
void linear_int8_neon_dotprod(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride,
                              int64_t n_begin, int64_t n_end);
void linear_int8_neon_i8mm(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride,
                           int64_t n_begin, int64_t n_end);
#endif

}  // namespace edge_kit
