// What the machine gives at most to the threads of a pool: bytes read, int8 multiplied.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/thread_pool.h"
#include "kernels/kernels.h"
#include "kernels/peak.h"

namespace edge_kit {

struct ReadLoop {
  const Kernels* kernels;
  int streams;
};

// Which of the loops of all kernel paths of this CPU with 1, 4 and 8 streams reads `data` the fastest. Each
// reads at least 1 GB (a smaller region again and again) in four turns, so that no moment decides.
ReadLoop find_read_loop(const uint8_t* data, size_t size, ThreadPool& pool);

// Bytes per second at which the pool's threads read `data` by `loop`, each one contiguous part, over at least
// 1 GB.
double read_bandwidth(const ReadLoop& loop, const uint8_t* data, size_t size, ThreadPool& pool);

// Int8 multiply-adds per second of the pool's threads together, over at least 30 ms.
double multiply_rate(const MultiplyLoop& loop, ThreadPool& pool);

}  // namespace edge_kit
