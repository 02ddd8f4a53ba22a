// One INT8 linear layer of the kit, as often as asked: activations are quantized, then multiplied.
//
//   edge_kit_linear ROWS N K REPETITIONS     prints the kernel path that the CPU chose
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/kernels.h"

using namespace edge_kit;

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const int64_t rows = std::atoi(argv[1]), n = std::atoi(argv[2]), k = std::atoi(argv[3]);
  const int64_t groups = (k + kGroup - 1) / kGroup, row_bytes = groups * kGroup;
  int8_t* weights = static_cast<int8_t*>(std::aligned_alloc(64, static_cast<size_t>(n * k)));
  int8_t* values = static_cast<int8_t*>(std::aligned_alloc(64, static_cast<size_t>(rows * row_bytes)));
  if (!weights || !values) return 3;
  std::memset(weights, 37, static_cast<size_t>(n * k));
  std::vector<float> x(static_cast<size_t>(rows * k)), y(static_cast<size_t>(rows * n));
  std::vector<float> scale(static_cast<size_t>(rows * groups)), weight_scale(static_cast<size_t>(n), 0.01f);
  std::vector<int32_t> offset(static_cast<size_t>(rows * groups));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 31 % 255) - 127.0f;

  const Kernels& kernels = *best_kernels();
  const Weight w = {weights, weight_scale.data(), nullptr, n, k, WeightLayout::kTiles, true};
  const QuantizedRows quantized = {values, scale.data(), offset.data(), rows, groups};
  for (int i = std::atoi(argv[4]); i > 0; --i) {
    for (int64_t r = 0; r < rows; ++r) {
      kernels.quantize_row(x.data() + r * k, k, values + r * row_bytes, scale.data() + r * groups,
                           offset.data() + r * groups);
    }
    kernels.linear_int8(w, quantized, y.data(), n, 0, n);
  }
  std::printf("%s\n", kernels.name);
  return 0;
}
