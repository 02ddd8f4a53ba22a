// The loops that say what the machine can do: every kernel path has its own, and they measure something.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "edge_kit.h"
#include "engine/bandwidth.h"
#include "test.h"

using namespace edge_kit;
using edge_kit_test::is_slow;

namespace {

TEST(every_path_has_a_multiply_loop) {
  ThreadPool pool(2);
  for (const char* const* name = available_kernels(); *name != nullptr; ++name) {
    const MultiplyLoop* loop = find_multiply_loop(*name);
    REQUIRE(loop != nullptr);
    CHECK(std::strcmp(loop->isa, *name) == 0 && multiply_rate(*loop, pool) > 1e6);
    double rate = 0;
    CHECK(ek_multiply_peak(*name, 1, &rate) == EK_OK && rate > 1e6);
  }
  CHECK(find_multiply_loop("abacus") == nullptr);
}

TEST(multiply_peak_misuse) {
  double rate = 0;
  CHECK(ek_multiply_peak("abacus", 1, &rate) == EK_ERR_INVALID_ARGUMENT);
  CHECK(std::string(ek_last_error()).find("isa abacus is not a kernel path") != std::string::npos);
  CHECK(ek_multiply_peak(nullptr, -1, &rate) == EK_ERR_INVALID_ARGUMENT);
  CHECK(ek_multiply_peak(nullptr, 1, nullptr) == EK_ERR_INVALID_ARGUMENT);
}

TEST(read_bandwidth_of_small_regions) {
  if (is_slow()) return;  // reading 9 GB takes minutes
  const std::vector<uint8_t> data(5 * 4096 + 100, 1);
  for (const int threads : {1, 2}) {
    ThreadPool pool(threads);
    const ReadLoop loop = find_read_loop(data.data(), data.size(), pool);
    CHECK(loop.kernels != nullptr && (loop.streams == 1 || loop.streams == 4 || loop.streams == 8));
    CHECK(read_bandwidth(loop, data.data(), data.size(), pool) > 1e7);
  }
  double rate = 0;
  CHECK(ek_read_bandwidth(data.data(), 4096, 2, &rate) == EK_ERR_INVALID_ARGUMENT);
  CHECK(std::string(ek_last_error()).find("too small") != std::string::npos);
}

}  // namespace

int main() { return edge_kit_test::run_tests(); }
