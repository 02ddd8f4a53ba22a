// Which buffers a step reads and writes, and how wide.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace edge_kit {

struct Access {
  int buffer;
  int64_t width;  // floats per row
};

struct StepAccess {
  std::vector<Access> reads, writes;
};

StepAccess step_access(const Step& step);

// Throws EK_ERR_INTERNAL unless every access lies within its buffer, the logits have a buffer of their own
// that the last step writes, and heads are shaped as the plan says.
void check_plan(const Plan& plan);

// Buffers whose values pass from the steps before `first` to those from it on.
std::vector<int> live_buffers(const Plan& plan, size_t first);

// Whether the steps from `first` on are an MLP that can be run as one: gate and up, their activation, down,
// all INT8 and in whole groups of quantization, and no other step reads what passes between them.
constexpr size_t kMlpSteps = 3;
bool is_int8_mlp(const Plan& plan, size_t first);

}  // namespace edge_kit
