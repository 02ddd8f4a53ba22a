// The tables of the paths, one per file. Constant-initialized: no code of an ISA file runs before dispatch.
#pragma once

#include "kernels.h"

namespace edge_kit {

extern const Kernels kScalarKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvxVnniKernels;
extern const Kernels kAvx512VnniKernels;
extern const Kernels kAmxInt8Kernels;
#endif

}  // namespace edge_kit
