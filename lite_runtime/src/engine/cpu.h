// How many threads are worth having here.
#pragma once

namespace edge_kit {

constexpr int kMaxThreads = 256;

// Physical cores of the fastest kind that this process may use, within its CPU quota; at least 1. Siblings
// of hyper-threaded cores are not counted: two threads of one core share the caches and the port to memory.
int default_threads();

// `wanted`, or the default for 0; EK_ERR_INVALID_ARGUMENT unless within 0 and kMaxThreads.
int resolve_threads(int wanted);

}  // namespace edge_kit
