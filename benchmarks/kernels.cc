// How near the INT8 kernels come to the machine: GEMV to its read bandwidth, GEMM to its multiply peak.
//
// Build, from the top folder (flags.txt says how each kernel file is compiled):
//   mkdir -p build/bench && cd lite_runtime/src/kernels
//   while read -r file arch flags; do case "$arch" in any|"$(uname -m)")
//     c++ -std=c++17 -O2 $flags -I.. -c "$file" -o "../../../build/bench/$file.o";; esac; done < flags.txt; cd -
//   c++ -std=c++17 -O2 -Ilite_runtime/src -c lite_runtime/src/engine/thread_pool.cc -o build/bench/pool.o
//   c++ -std=c++17 -O3 -pthread -Ilite_runtime/src benchmarks/kernels.cc build/bench/*.o -o build/bench/kernels
// Run: build/bench/kernels [N K threads rows...], with EDGE_KIT_ISA=... for another path than the best.
// Times are per layer, interleaved with reads and multiplications; shown are the medians and the best 5 %.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "engine/thread_pool.h"
#include "kernels/kernels.h"
#include "kernels/peak.h"

using namespace edge_kit;

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kBytes = size_t{3} << 29;  // walked once per round: more than any cache holds
constexpr int64_t kPeakOperations = 200000000;  // per thread: long enough that waking it does not count

// Rates of one kind of work, in units per second.
struct Rates {
  template <typename F>
  void measure(double units, const F& work) {
    const auto start = Clock::now();
    work();
    values.push_back(units / std::chrono::duration<double>(Clock::now() - start).count());
  }
  double at(double part) {  // 0 = the best
    std::sort(values.rbegin(), values.rend());
    return values.empty() ? 0 : values[static_cast<size_t>(part * static_cast<double>(values.size()))];
  }
  std::vector<double> values;
};

struct Bench {
  Bench(int64_t n, int64_t k, int threads) : n(n), k(k), pool(threads), scale(static_cast<size_t>(n), 0.01f) {
    if (!data) std::abort();
    for (size_t i = 0; i < kBytes; i += 8) {
      const uint64_t word = i * 0x9e3779b97f4a7c15u;
      std::memcpy(data + i, &word, 8);
    }
  }

  void read(const uint8_t* layer, int streams) {
    constexpr int64_t kPart = 32768;
    pool.parallel_for(n * k / kPart, [&](int64_t begin, int64_t end) {
      const size_t bytes = static_cast<size_t>((end - begin) * kPart);
      checksum += kernels.read_stream(layer + begin * kPart, bytes, streams);
    });
  }

  void linear(const uint8_t* layer, const QuantizedRows& x, float* y) {
    const Weight w = {layer, scale.data(), nullptr, n, k, WeightLayout::kTiles, true};
    pool.parallel_for(n / kTileN, [&](int64_t begin, int64_t end) {
      kernels.linear_int8(w, x, y, n, begin * kTileN, end * kTileN);
    });
  }

  void run(int64_t rows) {
    const int64_t groups = (k + kGroup - 1) / kGroup;
    const size_t layer_bytes = static_cast<size_t>(n * k), parts = static_cast<size_t>(rows * groups);
    int8_t* values = static_cast<int8_t*>(std::aligned_alloc(64, (parts * kGroup + 63) / 64 * 64));
    if (!values) std::abort();
    std::vector<float> x(parts * kGroup), scales(parts), y(static_cast<size_t>(rows * n));
    std::vector<int32_t> offsets(parts);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 31 % 255) - 127.0f;
    kernels.quantize_row(x.data(), rows * groups * kGroup, values, scales.data(), offsets.data());
    const QuantizedRows quantized = {values, scales.data(), offsets.data(), rows, groups};
    Rates weights, reads, peaks;
    const auto end = Clock::now() + std::chrono::seconds(4);
    for (size_t i = 0; Clock::now() < end; ++i) {
      constexpr int kStreams[] = {1, 4, 8};
      const uint8_t* layer = data + i % (kBytes / layer_bytes) * layer_bytes;
      if (i % 2 == 0) {
        weights.measure(static_cast<double>(layer_bytes), [&] { linear(layer, quantized, y.data()); });
      } else {
        reads.measure(static_cast<double>(layer_bytes), [&] { read(layer, kStreams[i / 2 % 3]); });
        const int64_t steps = kPeakOperations / peak.step_operations;
        const double operations = 2.0 * static_cast<double>(steps * peak.step_operations);
        peaks.measure(operations * pool.n_threads(), [&] { pool.run([&](int) { peak.run(steps); }); });
      }
    }
    std::free(values);
    for (const double part : {0.5, 0.05}) {
      const double rate = weights.at(part) / 1e9, done = 2 * rate * static_cast<double>(rows);
      const double bandwidth = reads.at(part) / 1e9, most = peaks.at(part) / 1e9;
      std::printf("rows %4d %s  %6.2f GB/s of %6.2f (%3.0f %%)  %7.1f GOP/s of %7.1f (%3.0f %%)\n",
                  static_cast<int>(rows), part == 0.5 ? "median  " : "best 5 %", rate, bandwidth,
                  100 * rate / bandwidth, done, most, 100 * done / most);
    }
  }

  const Kernels& kernels = *best_kernels();
  const MultiplyLoop& peak = *find_multiply_loop(kernels.name);
  int64_t n, k;
  ThreadPool pool;
  std::vector<float> scale;
  uint8_t* data = static_cast<uint8_t*>(std::aligned_alloc(4096, kBytes));
  std::atomic<uint64_t> checksum{0};
};

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  const int n = number(1, 8960), k = number(2, 1536), threads = number(3, 1);
  if (n <= 0 || k <= 0 || n % kTileN || k % kTileK || static_cast<int64_t>(n) * k > int64_t{kBytes}) {
    std::printf("found N %d, K %d; expected N a multiple of 16, K of 4, N * K at most %zu\n", n, k, kBytes);
    return 2;
  }
  Bench bench(n, k, threads);
  std::printf("%s, N %d, K %d, %d threads; weights of reads, operations of the multiply peak\n", bench.kernels.name,
              n, k, threads);
  for (int i = 4; i < std::max(argc, 5); ++i) bench.run(std::max(1, number(i, 1)));
  return 0;
}
