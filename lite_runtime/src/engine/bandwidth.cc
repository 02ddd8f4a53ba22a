#include "engine/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "io/status.h"

namespace edge_kit {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPage = 4096;
constexpr size_t kLeastBytes = size_t{1} << 30;
constexpr size_t kTurns = 4;  // of each loop when the best one is looked for
constexpr double kLeastSeconds = 0.03;

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Each thread has one part of a region.
struct Region {
  Region(const uint8_t* data, size_t size, ThreadPool& pool)
      : data(data), part(size / static_cast<size_t>(pool.n_threads()) / kPage * kPage), pool(pool) {
    if (part > 0) return;
    throw Error(EK_ERR_INVALID_ARGUMENT, "a region of " + std::to_string(size) +
                                             " bytes is too small to measure with " +
                                             std::to_string(pool.n_threads()) + " threads");
  }

  // Bytes per second of reading `bytes` from `offset` on in every part, as often as it takes to make up
  // `least` bytes of all threads.
  double read(const ReadLoop& loop, size_t offset, size_t bytes, size_t least) {
    const size_t once = bytes * static_cast<size_t>(pool.n_threads());
    const size_t passes = std::max<size_t>(1, (least + once - 1) / once);
    const Clock::time_point begin = Clock::now();
    pool.run([&](int thread) {
      const uint8_t* from = data + static_cast<size_t>(thread) * part + offset;
      for (size_t pass = 0; pass < passes; ++pass) {
        sum += loop.kernels->read_stream(from, bytes, loop.streams);
      }
    });
    return static_cast<double>(once * passes) / since(begin);
  }

  const uint8_t* data;
  const size_t part;
  ThreadPool& pool;
  std::atomic<uint64_t> sum{0};  // keeps the reads from being left out
};

}  // namespace

ReadLoop find_read_loop(const uint8_t* data, size_t size, ThreadPool& pool) {
  Region region(data, size, pool);
  region.read({best_kernels(), 1}, 0, region.part, 0);  // brings the pages in
  std::vector<ReadLoop> loops;
  for (const char* const* name = available_kernels(); *name != nullptr; ++name) {
    const Kernels* kernels = find_kernels(*name);
    // Neighbouring paths may share their loops.
    if (!loops.empty() && loops.back().kernels->read_stream == kernels->read_stream) continue;
    for (int streams : {1, 4, 8}) loops.push_back({kernels, streams});
  }
  const size_t bytes = std::max(kPage, region.part / kTurns / kPage * kPage);
  std::vector<double> best(loops.size(), 0.0);
  for (size_t turn = 0; turn < kTurns; ++turn) {
    const size_t offset = std::min(turn * bytes, region.part - bytes);
    for (size_t i = 0; i < loops.size(); ++i) {
      best[i] = std::max(best[i], region.read(loops[i], offset, bytes, kLeastBytes / kTurns));
    }
  }
  return loops[static_cast<size_t>(std::max_element(best.begin(), best.end()) - best.begin())];
}

double read_bandwidth(const ReadLoop& loop, const uint8_t* data, size_t size, ThreadPool& pool) {
  Region region(data, size, pool);
  return region.read(loop, 0, region.part, kLeastBytes);
}

double multiply_rate(const MultiplyLoop& loop, ThreadPool& pool) {
  double seconds = 0;
  int64_t steps = 512;
  while (seconds < kLeastSeconds) {
    steps *= 2;
    const Clock::time_point begin = Clock::now();
    pool.run([&](int) { loop.run(steps); });
    seconds = since(begin);
  }
  return static_cast<double>(steps * loop.step_operations) * pool.n_threads() / seconds;
}

}  // namespace edge_kit
