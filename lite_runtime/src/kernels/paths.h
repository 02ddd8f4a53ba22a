// The tables of the paths, one per file. Constant-initialized: no code of an ISA file runs before dispatch.
#pragma once

#include "kernels.h"

namespace edge_kit {

extern const Kernels kScalarKernels;

}  // namespace edge_kit
