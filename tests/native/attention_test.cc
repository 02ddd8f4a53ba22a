// Attention of every kernel path of this CPU against the scalar one, and the scalar one against the formula.
#include <limits>

#include "kernel_cases.h"

using namespace edge_kit;
using namespace edge_kit_test;

namespace {

template <typename T>
struct Cache {
  Cache(int64_t tokens, int64_t dim) {
    for (int64_t b = 0; b * kCacheBlock < tokens; ++b) {
      for (auto* side : {&k, &v}) {
        const std::vector<float> x = normals(kCacheBlock * dim);
        blocks.emplace_back(kCacheBlock * dim);
        if constexpr (sizeof(T) == 2) {
          scalar().to_f16(x.data(), blocks.back().get(), kCacheBlock * dim);
        } else {
          std::memcpy(blocks.back().get(), x.data(), x.size() * sizeof(float));
        }
        side->push_back(blocks.back().get());
      }
    }
  }
  std::vector<Exact<T>> blocks;
  std::vector<const void*> k, v;
};

template <typename T>
void check_attention(int64_t dim, int64_t group, int64_t rows, int64_t first_visible) {
  Cache<T> cache(first_visible + rows - 1, dim);
  const int64_t stride = group * dim + 3;
  const std::vector<float> q = normals(rows * stride);
  const auto run = [&](const Kernels& kernels, int64_t first, int64_t count, std::vector<float>* out) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
    AttentionArgs args = {q.data() + first * stride, stride, count, group, dim, first_visible + first,
                          cache.k.data(), cache.v.data(), scale, out->data() + first * stride, stride};
    (sizeof(T) == 2 ? kernels.attention_f16 : kernels.attention_f32)(args);
  };
  std::vector<float> expected(q.size(), 5.0f);
  run(scalar(), 0, rows, &expected);
  for (const Kernels* kernels : paths()) {
    const std::string name = kernels->name + std::string(" dim ") + std::to_string(dim) + " group " +
                             std::to_string(group) + " rows " + std::to_string(rows) + " from " +
                             std::to_string(first_visible);
    std::vector<float> whole(q.size(), 5.0f), cut(q.size(), 5.0f), single(q.size(), 5.0f);
    run(*kernels, 0, rows, &whole);
    CHECK_CASE(same_bits(whole, expected), name);
    for (int64_t r = 0; r < rows; r += 7) run(*kernels, r, std::min<int64_t>(7, rows - r), &cut);
    for (int64_t r = 0; r < rows; ++r) run(*kernels, r, 1, &single);
    CHECK_CASE(same_bits(whole, cut) && same_bits(whole, single), name);
  }
}

TEST(attentions) {
  for (const int64_t dim : {5, 64, 80, 128, 512}) {
    for (const int64_t group : {1, 3, 6, 50}) {
      for (const int64_t rows : {1, 9, 70}) {
        if (rows == 70 && (group == 50 || dim == 512)) continue;
        if (kSanitized && rows * group * dim > 1 << 11) continue;
        for (const int64_t first_visible : {1, 63, 64, 65, 200}) {
          check_attention<uint16_t>(dim, group, rows, first_visible);
          if (dim <= 80) check_attention<float>(dim, group, rows, first_visible);
        }
      }
    }
  }
}

// One block: the plain softmax, in double.
TEST(attention_formula) {
  const int64_t dim = 8, visible = 40;
  Cache<float> cache(visible, dim);
  const std::vector<float> q = normals(dim, 3.0f);
  const float* k = static_cast<const float*>(cache.k[0]);
  const float* v = static_cast<const float*>(cache.v[0]);
  std::vector<double> sums(dim);
  double total = 0;
  for (int64_t j = 0; j < visible; ++j) {
    double score = 0;
    for (int64_t d = 0; d < dim; ++d) score += static_cast<double>(q[d]) * k[j * dim + d];
    total += std::exp(score * 0.5);
    for (int64_t d = 0; d < dim; ++d) sums[d] += std::exp(score * 0.5) * v[j * dim + d];
  }
  for (const Kernels* kernels : paths()) {
    std::vector<float> out(dim);
    kernels->attention_f32({q.data(), dim, 1, 1, dim, visible, cache.k.data(), cache.v.data(), 0.5f, out.data(), dim});
    for (int64_t d = 0; d < dim; ++d) CHECK_CASE(std::fabs(out[d] - sums[d] / total) < 1e-5, kernels->name);
  }
}

// Tokens that a row does not see may hold anything.
TEST(attention_unseen) {
  const int64_t dim = 16, rows = 3;
  Cache<float> cache(10, dim);
  for (const size_t side : {0, 1}) {
    float* block = cache.blocks[side].get();
    for (int64_t i = 6 * dim; i < kCacheBlock * dim; ++i) block[i] = std::numeric_limits<float>::quiet_NaN();
  }
  const std::vector<float> q = normals(rows * dim);
  for (const Kernels* kernels : paths()) {
    std::vector<float> out(q.size());
    kernels->attention_f32({q.data(), dim, rows, 1, dim, 5, cache.k.data(), cache.v.data(), 1.0f, out.data(), dim});
    for (int64_t i = 0; i < rows * dim; ++i) CHECK_CASE(std::isnan(out[i]) == (i >= 2 * dim), kernels->name);
  }
}

}  // namespace

int main() { return run_tests(); }
