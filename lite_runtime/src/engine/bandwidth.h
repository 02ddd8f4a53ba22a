#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/thread_pool.h"

namespace edge_kit {

// Bytes per second at which the pool's threads read `data`, each one contiguous part, over at least 1 GB (a
// smaller region is read again and again): the best of all kernel paths of this CPU with 1, 4 and 8 streams.
double read_bandwidth(const uint8_t* data, size_t size, ThreadPool& pool);

}  // namespace edge_kit
