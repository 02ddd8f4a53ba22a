// Loops that do nothing but multiply int8, one per kernel path: what a core of this CPU can do at most.
#pragma once

#include <cstdint>

namespace edge_kit {

struct MultiplyLoop {
  const char* isa;          // of the Kernels that multiply so
  int64_t step_operations;  // multiply-adds per step
  void (*run)(int64_t steps);
};

// Null for a path that has none. The loop runs only where find_kernels(isa) gives the path.
const MultiplyLoop* find_multiply_loop(const char* isa);

}  // namespace edge_kit
