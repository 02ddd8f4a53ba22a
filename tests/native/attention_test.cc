// Attention of every kernel path of this CPU against the scalar one, and the scalar one against the formula.
#include <algorithm>
#include <limits>

#include "kernel_cases.h"

using namespace edge_kit;
using namespace edge_kit_test;

namespace {

enum class Kind { kF16, kF32, kInt8 };

// Keys [dim, 64] and values [64, dim] of one head per block; of an int8 cache also in their quantized form.
struct Cache {
  Cache(int64_t tokens, int64_t dim, Kind kind) : kind(kind), dim(dim), plane(kCacheBlock * dim) {
    for (int64_t b = 0; b * kCacheBlock < tokens; ++b) {
      const std::vector<float> x = normals(2 * plane);
      floats.emplace_back(2 * plane);
      halves.emplace_back(2 * plane);
      std::memcpy(floats.back().get(), x.data(), x.size() * sizeof(float));
      scalar().to_f16(x.data(), halves.back().get(), 2 * plane);
      quantized.emplace_back(2 * plane + 4 * (dim + kCacheBlock));
      int8_t* planes = quantized.back().get();
      scalar().quantize_plane(halves.back().get(), dim, kCacheBlock, planes);
      scalar().quantize_plane(halves.back().get() + plane, kCacheBlock, dim, planes + plane + 4 * dim);
    }
    for (size_t b = 0; b < floats.size(); ++b) {
      const void* block = kind == Kind::kInt8  ? static_cast<const void*>(quantized[b].get())
                          : kind == Kind::kF32 ? static_cast<const void*>(floats[b].get())
                                               : static_cast<const void*>(halves[b].get());
      blocks.push_back(static_cast<const uint8_t*>(block));
    }
  }
  int64_t values_at() const {
    return kind == Kind::kInt8 ? plane + 4 * dim : plane * (kind == Kind::kF32 ? 4 : 2);
  }
  AttentionArgs args(const float* q, int64_t rows, int64_t group, int64_t first_visible, float scale,
                     float* out, int64_t stride) const {
    const size_t own = static_cast<size_t>((first_visible - 1) / kCacheBlock);
    const uint16_t* h = halves[own].get();
    const float* f = floats[own].get();
    AttentionArgs args = {};
    args.q = q;
    args.q_stride = stride;
    args.rows = rows;
    args.group = group;
    args.dim = dim;
    args.first_visible = first_visible;
    args.blocks = blocks.data();
    args.values_at = values_at();
    args.own_keys = kind == Kind::kF32 ? static_cast<const void*>(f) : h;
    args.own_values = kind == Kind::kF32 ? static_cast<const void*>(f + plane) : h + plane;
    args.scale = scale;
    args.out = out;
    args.out_stride = stride;
    return args;
  }
  void run(const Kernels& kernels, const AttentionArgs& args) const {
    if (kind == Kind::kF16) kernels.attention_f16(args);
    if (kind == Kind::kF32) kernels.attention_f32(args);
    if (kind == Kind::kInt8) kernels.attention_int8(args);
  }
  const Kind kind;
  const int64_t dim, plane;
  std::vector<Exact<float>> floats;
  std::vector<Exact<uint16_t>> halves;
  std::vector<Exact<int8_t>> quantized;
  std::vector<const uint8_t*> blocks;
};

// Rows [0, rows), cut at the ends of blocks and after `step` rows.
template <typename Function>
void for_parts(int64_t rows, int64_t first_visible, int64_t step, const Function& function) {
  for (int64_t r = 0, count; r < rows; r += count) {
    const int64_t left = kCacheBlock - (first_visible + r - 1) % kCacheBlock;
    count = std::min({step, rows - r, left});
    function(r, count);
  }
}

void check_attention(Kind kind, int64_t dim, int64_t group, int64_t rows, int64_t first_visible) {
  const Cache cache(first_visible + rows - 1, dim, kind);
  const int64_t stride = group * dim + 3;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const std::vector<float> q = normals(rows * stride);
  const auto args_of = [&](int64_t r, int64_t count, std::vector<float>* out) {
    return cache.args(q.data() + r * stride, count, group, first_visible + r, scale, out->data() + r * stride,
                      stride);
  };
  const auto run = [&](const Kernels& kernels, int64_t step) {
    std::vector<float> out(q.size(), 5.0f);
    for_parts(rows, first_visible, step,
              [&](int64_t r, int64_t count) { cache.run(kernels, args_of(r, count, &out)); });
    return out;
  };
  // Blocks in ranges of 1 and 2, the last first.
  const auto run_shared = [&](const Kernels& kernels) {
    std::vector<float> out(q.size(), 5.0f);
    for_parts(rows, first_visible, rows, [&](int64_t r, int64_t count) {
      AttentionArgs args = args_of(r, count, &out);
      Exact<float> partials(args.n_blocks() * count * group * partial_floats(dim));
      args.partials = partials.get();
      for (args.block_end = args.n_blocks(); args.block_end > 0; args.block_end = args.block_begin) {
        args.block_begin = std::max<int64_t>(0, args.block_end - 1 - args.block_end % 2);
        cache.run(kernels, args);
      }
      kernels.fold_partials(args);
    });
    return out;
  };
  const std::vector<float> expected = run(scalar(), rows);
  for (const Kernels* kernels : paths()) {
    const std::string name = kernels->name + std::string(" kind ") + std::to_string(static_cast<int>(kind)) +
                             " dim " + std::to_string(dim) + " group " + std::to_string(group) + " rows " +
                             std::to_string(rows) + " from " + std::to_string(first_visible);
    CHECK_CASE(same_bits(run(*kernels, rows), expected), name);
    CHECK_CASE(same_bits(run(*kernels, 7), expected) && same_bits(run(*kernels, 1), expected), name);
    CHECK_CASE(same_bits(run_shared(*kernels), expected), name + ", shared");
  }
}

TEST(attentions) {
  for (const int64_t dim : {5, 64, 80, 128, 512}) {
    for (const int64_t group : {1, 3, 6, 50}) {
      for (const int64_t rows : {1, 2, 9, 70}) {
        if (rows == 70 && (group == 50 || dim == 512)) continue;
        if (is_slow() && rows * group * dim > 1 << 11) continue;
        for (const int64_t first_visible : {1, 63, 64, 65, 200}) {
          check_attention(Kind::kF16, dim, group, rows, first_visible);
          if (first_visible > 1) check_attention(Kind::kInt8, dim, group, rows, first_visible);
          if (dim <= 80) check_attention(Kind::kF32, dim, group, rows, first_visible);
        }
      }
    }
  }
}

// One block: the plain softmax, in double.
TEST(attention_formula) {
  const int64_t dim = 8, visible = 40;
  const Cache cache(visible, dim, Kind::kF32);
  const std::vector<float> q = normals(dim, 3.0f);
  const float* k = cache.floats[0].get();
  const float* v = k + cache.plane;
  std::vector<double> sums(dim);
  double total = 0;
  for (int64_t j = 0; j < visible; ++j) {
    double score = 0;
    for (int64_t d = 0; d < dim; ++d) score += static_cast<double>(q[d]) * k[d * kCacheBlock + j];
    total += std::exp(score * 0.5);
    for (int64_t d = 0; d < dim; ++d) sums[d] += std::exp(score * 0.5) * v[j * dim + d];
  }
  for (const Kernels* kernels : paths()) {
    std::vector<float> out(dim);
    cache.run(*kernels, cache.args(q.data(), 1, 1, visible, 0.5f, out.data(), dim));
    for (int64_t d = 0; d < dim; ++d) CHECK_CASE(std::fabs(out[d] - sums[d] / total) < 1e-5, kernels->name);
  }
}

// An int8 block counts as what its values times its scales are.
TEST(attention_of_dequantized_blocks) {
  for (const int64_t dim : {5, 64}) {
    const Cache cache(3 * kCacheBlock, dim, Kind::kInt8), plain(3 * kCacheBlock, dim, Kind::kF32);
    for (size_t b = 0; b < 3; ++b) {
      const int8_t* from = cache.quantized[b].get();
      float* to = plain.floats[b].get();
      for (const int64_t columns : {kCacheBlock, dim}) {
        const float* scale = reinterpret_cast<const float*>(from + cache.plane);
        for (int64_t i = 0; i < cache.plane; ++i) *to++ = static_cast<float>(from[i]) * scale[i / columns];
        from += cache.values_at();
      }
      if (b < 2) continue;  // the own block stays in fp16
      for (int64_t i = 0; i < 2 * cache.plane; ++i) {
        const float x = static_cast<float>(i % 17 - 8) / 16;  // exact in both
        plain.floats[b].get()[i] = x;
        scalar().to_f16(&x, cache.halves[b].get() + i, 1);
      }
    }
    const std::vector<float> q = normals(2 * dim);
    std::vector<float> found(2 * dim), expected(2 * dim);
    cache.run(scalar(), cache.args(q.data(), 2, 1, 2 * kCacheBlock + 9, 0.3f, found.data(), dim));
    plain.run(scalar(), plain.args(q.data(), 2, 1, 2 * kCacheBlock + 9, 0.3f, expected.data(), dim));
    CHECK_CASE(same_bits(found, expected), "dim " + std::to_string(dim));
  }
}

// Tokens that a row does not see may hold anything.
TEST(attention_unseen) {
  const int64_t dim = 16, rows = 3;
  const Cache cache(10, dim, Kind::kF32);
  float* k = cache.floats[0].get();
  for (int64_t i = 0; i < cache.plane; ++i) {
    if (i % kCacheBlock >= 6) k[i] = std::numeric_limits<float>::quiet_NaN();
    if (i >= 6 * dim) k[cache.plane + i] = std::numeric_limits<float>::quiet_NaN();
  }
  const std::vector<float> q = normals(rows * dim);
  for (const Kernels* kernels : paths()) {
    std::vector<float> out(q.size());
    cache.run(*kernels, cache.args(q.data(), rows, 1, 5, 1.0f, out.data(), dim));
    for (int64_t i = 0; i < rows * dim; ++i) CHECK_CASE(std::isnan(out[i]) == (i >= 2 * dim), kernels->name);
  }
}

TEST(planes) {
  for (const int64_t columns : {5, 24, 64, 128}) {
    const int64_t rows = kCacheBlock;
    std::vector<float> x = normals(rows * columns);
    for (int64_t i = 0; i < columns; ++i) x[i] = 0.0f;
    for (int64_t i = 0; i < columns; ++i) x[columns + i] = 0x1p-24f;  // the smallest of fp16
    x[2 * columns] = 1e6f;                                            // overflows to an infinity
    x[3 * columns + columns - 1] = std::numeric_limits<float>::quiet_NaN();
    for (const int64_t i : {0, 1, 2}) x[4 * columns + i] = i == 0 ? 127.0f : static_cast<float>(i) + 0.5f;
    for (int64_t i = 3; i < columns; ++i) x[4 * columns + i] = -127.0f;
    std::vector<uint16_t> halves(x.size());
    scalar().to_f16(x.data(), halves.data(), rows * columns);
    const size_t bytes = static_cast<size_t>(rows * (columns + 4));
    const auto run = [&](const Kernels& kernels) {
      Exact<int8_t> plane(static_cast<int64_t>(bytes));
      kernels.quantize_plane(halves.data(), rows, columns, plane.get());
      return std::vector<int8_t>(plane.get(), plane.get() + bytes);
    };
    const std::vector<int8_t> expected = run(scalar());
    const float* scale = reinterpret_cast<const float*>(expected.data() + rows * columns);
    CHECK(scale[0] == 0.0f && scale[1] == 0x1p-24f / 127.0f && std::isnan(scale[2]) && std::isnan(scale[3]));
    for (int64_t i = 0; i < 4 * columns; ++i) CHECK(expected[i] == (i / columns == 1 ? 127 : 0));
    const int8_t* row = expected.data() + 4 * columns;
    CHECK(scale[4] == 1.0f && row[0] == 127 && row[1] == 2 && row[2] == 2 && row[3] == -127);
    for (const Kernels* kernels : paths()) {
      CHECK_CASE(same_bits(run(*kernels), expected), kernels->name + (" " + std::to_string(columns)));
    }
  }
}

}  // namespace

int main() { return run_tests(); }
