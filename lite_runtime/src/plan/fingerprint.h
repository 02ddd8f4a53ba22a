// A number that tells models apart by what they compute, in a fraction of the time that reading them takes.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace edge_kit {

// XXH64 over the plan's steps in order: their kinds, sizes and constants, every scale, bias and norm in full,
// and of each matrix eight samples spread over it. An int8 row's scale follows its largest weight, so that
// training a model further shows even where no sample lies. Names, kernels and buffers do not count: a model
// lowered for x86 and for ARM has one fingerprint.
uint64_t fingerprint(const Plan& plan);

}  // namespace edge_kit
