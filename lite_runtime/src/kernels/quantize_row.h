// Quantization of a row, for paths that define the `quantize_group` of one group.
#pragma once

#include "isa_common.h"
#include "kernels.h"

namespace edge_kit {
namespace {

// x [kGroup].
void quantize_group(const float* x, int8_t* values, float* scale, int32_t* offset);

// Zeros fill up the last group.
inline void quantize_row(const float* x, int64_t k, int8_t* values, float* scale, int32_t* offset) {
  int64_t g = 0;
  for (; (g + 1) * kGroup <= k; ++g) quantize_group(x + g * kGroup, values + g * kGroup, scale + g, offset + g);
  if (g * kGroup < k) {
    float tail[kGroup] = {};
    __builtin_memcpy(tail, x + g * kGroup, static_cast<size_t>(k - g * kGroup) * sizeof(float));
    quantize_group(tail, values + g * kGroup, scale + g, offset + g);
  }
}

}  // namespace
}  // namespace edge_kit
