#include "engine/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>

#include "io/status.h"
#include "kernels/kernels.h"

namespace edge_kit {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kLeastBytes = size_t{1} << 30;

// Seconds for reading the region `passes` times; `sum` keeps the reads from being left out.
double read_passes(const Kernels& kernels, int streams, const uint8_t* data, size_t part, size_t passes,
                   ThreadPool& pool, std::atomic<uint64_t>* sum) {
  const auto begin = std::chrono::steady_clock::now();
  pool.run([&](int thread) {
    for (size_t pass = 0; pass < passes; ++pass) {
      *sum += kernels.read_stream(data + static_cast<size_t>(thread) * part, part, streams);
    }
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

double read_bandwidth(const uint8_t* data, size_t size, ThreadPool& pool) {
  const size_t threads = static_cast<size_t>(pool.n_threads());
  const size_t part = size / threads / kPage * kPage, bytes = part * threads;
  if (part == 0) {
    throw Error(EK_ERR_INVALID_ARGUMENT, "a region of " + std::to_string(size) +
                                             " bytes is too small to measure with " +
                                             std::to_string(threads) + " threads");
  }
  const size_t passes = std::max<size_t>(1, (kLeastBytes + bytes - 1) / bytes);
  std::atomic<uint64_t> sum{0};
  read_passes(*best_kernels(), 1, data, part, 1, pool, &sum);  // brings the pages in
  double best = 0.0;
  for (const char* const* name = available_kernels(); *name != nullptr; ++name) {
    for (int streams : {1, 4, 8}) {
      const double seconds = read_passes(*find_kernels(*name), streams, data, part, passes, pool, &sum);
      best = std::max(best, static_cast<double>(bytes) * static_cast<double>(passes) / seconds);
    }
  }
  return best;
}

}  // namespace edge_kit
