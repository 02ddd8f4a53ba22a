// What the kernel tests share: random values, exact comparisons, buffers without slack, the paths of this CPU.
#pragma once

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "test.h"

namespace edge_kit_test {

using edge_kit::available_kernels;
using edge_kit::find_kernels;
using edge_kit::Kernels;

inline std::mt19937 generator(7);

inline float normal(float deviation = 1.0f) { return std::normal_distribution<float>(0.0f, deviation)(generator); }
inline int8_t any_byte() { return static_cast<int8_t>(std::uniform_int_distribution<int>(-128, 127)(generator)); }

inline std::vector<float> normals(int64_t n, float deviation = 1.0f) {
  std::vector<float> x(static_cast<size_t>(n));
  for (float& value : x) value = normal(deviation);
  return x;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Largest |a - b| over the largest |b|.
inline double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0, scale = 1e-30;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(std::isfinite(a[i]) && std::isfinite(b[i]))) return 1e30;
    largest = std::fmax(largest, std::fabs(static_cast<double>(a[i]) - b[i]));
    scale = std::fmax(scale, std::fabs(b[i]));
  }
  return largest / scale;
}

inline std::vector<const Kernels*> paths() {
  std::vector<const Kernels*> found;
  for (const char* const* name = available_kernels(); *name; ++name) found.push_back(find_kernels(*name));
  return found;
}

inline const Kernels& scalar() { return *find_kernels("scalar"); }

// 64-byte aligned and of exactly the size asked for, so that AddressSanitizer sees every byte too far.
template <typename T>
struct Exact {
  explicit Exact(int64_t n) : size(static_cast<size_t>(n)) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, size * sizeof(T) + (size == 0)) != 0) std::abort();
    data.reset(static_cast<T*>(memory));
  }
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  T* get() const { return data.get(); }
  size_t size;
  std::unique_ptr<T[], Free> data;
};

}  // namespace edge_kit_test
