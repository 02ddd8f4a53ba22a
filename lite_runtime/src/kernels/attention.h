// Attention over `Lanes`. Queries (row, head) are taken in chunks; the chunk meets one block of the cache
// after the other, each converted to fp32 once: keys as [dim, 64] (lanes are keys), values as [64, dim]
// (lanes are dims). Both products add in order, so a query's result does not depend on the chunk that it is
// in.
#pragma once

#include "float_ops.h"

namespace edge_kit {
namespace {

constexpr int kQueryBlock = 6;       // queries per register block
constexpr int64_t kQueryChunk = 48;  // queries per pass over the cache

constexpr int64_t round_up(int64_t n) { return (n + Lanes::kCount - 1) / Lanes::kCount * Lanes::kCount; }

// keys [count, dim] -> out [dim, kCacheBlock]; lanes past count are left undefined.
template <typename T>
void transpose_keys(const T* keys, int64_t count, int64_t dim, float* out) {
  for (int64_t j = 0; j < count; j += Lanes::kCount) {
    for (int64_t d = 0; d < dim; d += Lanes::kCount) {
      const int64_t columns = smaller(Lanes::kCount, dim - d);
      Lanes square[Lanes::kCount];
      for (int i = 0; i < Lanes::kCount; ++i) {
        const T* key = keys + (j + i) * dim + d;
        square[i] = columns == Lanes::kCount ? Lanes::load(key) : load_part(key, columns);
      }
      transpose(square);
      for (int64_t i = 0; i < columns; ++i) square[i].store(out + (d + i) * kCacheBlock + j);
    }
  }
}

// values [count, dim] -> out [count, round_up(dim)], zero padded.
template <typename T>
void convert_values(const T* values, int64_t count, int64_t dim, float* out) {
  for (int64_t j = 0; j < count; ++j, values += dim) {
    int64_t d = 0;
    for (; d + Lanes::kCount <= dim; d += Lanes::kCount, out += Lanes::kCount)
      Lanes::load(values + d).store(out);
    if (d < dim) {
      load_part(values + d, dim - d).store(out);
      out += Lanes::kCount;
    }
  }
}

// store(i, lane, sum) for the Q queries and L Lanes from `lane` on, sum = sum_k a[i][k] * b[k][lane].
template <int Q, int L, typename Store>
void product(const float* const* a, int64_t depth, const float* b, int64_t b_stride, int64_t lane,
             const Store& store) {
  Lanes sums[Q][L];
  EDGE_KIT_UNROLL for (int i = 0; i < Q; ++i) {
    EDGE_KIT_UNROLL for (int l = 0; l < L; ++l) sums[i][l] = Lanes::set1(0.0f);
  }
  for (int64_t k = 0; k < depth; ++k) {
    Lanes row[L];
    const float* lanes = b + k * b_stride + lane;
    EDGE_KIT_UNROLL for (int l = 0; l < L; ++l) row[l] = Lanes::load(lanes + l * Lanes::kCount);
    EDGE_KIT_UNROLL for (int i = 0; i < Q; ++i) {
      const Lanes value = Lanes::set1(a[i][k]);
      EDGE_KIT_UNROLL for (int l = 0; l < L; ++l) sums[i][l] = fma(value, row[l], sums[i][l]);
    }
  }
  EDGE_KIT_UNROLL for (int i = 0; i < Q; ++i) {
    EDGE_KIT_UNROLL for (int l = 0; l < L; ++l) store(i, lane + l * Lanes::kCount, sums[i][l]);
  }
}

template <int Q, typename Store>
void product_lanes(const float* const* a, int64_t depth, const float* b, int64_t b_stride, int64_t lanes,
                   const Store& store) {
  constexpr int kWidth = Lanes::kBlock * (2 * Q <= kQueryBlock ? 2 : 1);  // few queries need more chains each
  constexpr int64_t kStep = kWidth * Lanes::kCount;
  int64_t lane = 0;
  for (; lane + kStep <= lanes; lane += kStep) product<Q, kWidth>(a, depth, b, b_stride, lane, store);
  for (; lane < lanes; lane += Lanes::kCount) product<Q, 1>(a, depth, b, b_stride, lane, store);
}

// The same for `count` queries; `store` gets the index among them.
template <int Q = kQueryBlock, typename Store>
void product_queries(const float* const* a, int64_t count, int64_t depth, const float* b, int64_t b_stride,
                     int64_t lanes, const Store& store, int64_t first = 0) {
  if constexpr (Q > 0) {
    for (; first + Q <= count; first += Q) {
      product_lanes<Q>(a + first, depth, b, b_stride, lanes,
                       [&](int i, int64_t lane, Lanes sum) { store(first + i, lane, sum); });
    }
    if (first < count) product_queries<Q - 1>(a, count, depth, b, b_stride, lanes, store, first);
  }
}

// One query's softmax over the blocks so far.
struct Softmax {
  float max, sum;
  float keep, take;  // factors of the earlier blocks' values and of this block's

  // scores [kCacheBlock], `count` of them real -> exp(score - max of the block), 0 past count.
  void add_block(float* scores, int64_t count, bool first) {
    for (int64_t j = count; j < kCacheBlock; ++j) scores[j] = -__builtin_inff();
    Lanes largest = Lanes::load(scores);
    for (int64_t j = Lanes::kCount; j < kCacheBlock; j += Lanes::kCount) {
      largest = edge_kit::max(largest, Lanes::load(scores + j));
    }
    const float block_max = largest.max();
    Lanes total = Lanes::set1(0.0f);
    for (int64_t j = 0; j < kCacheBlock; j += Lanes::kCount) {
      const Lanes p = exp(Lanes::load(scores + j) - Lanes::set1(block_max));
      p.store(scores + j);
      total = total + p;
    }
    float exps[Lanes::kCount] = {};
    const float new_max = first || block_max > max ? block_max : max;
    exps[0] = first ? -__builtin_inff() : max - new_max;
    exps[1] = block_max - new_max;
    exp(Lanes::load(exps)).store(exps);
    keep = exps[0];
    take = exps[1];
    sum = first ? total.sum() : sum * keep + total.sum() * take;
    max = new_max;
  }
};

// Queries [begin, end) of args, counted over [rows, group]; at most kQueryChunk.
template <typename T>
void attend(const AttentionArgs& args, int64_t begin, int64_t end) {
  alignas(64) float block[kCacheBlock * kMaxHeadDim];  // keys, then values, in fp32
  alignas(64) float scores[kQueryChunk][kCacheBlock];
  const float* queries[kQueryChunk];
  const float* weights[kQueryChunk];
  float* outs[kQueryChunk];
  Softmax softmax[kQueryChunk];
  const int64_t dim = args.dim, padded = round_up(dim), count = end - begin;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = (begin + i) / args.group, head = (begin + i) % args.group;
    queries[i] = args.q + row * args.q_stride + head * dim;
    outs[i] = args.out + row * args.out_stride + head * dim;
    weights[i] = scores[i];
  }
  const auto visible = [&](int64_t i) { return args.first_visible + (begin + i) / args.group; };
  for (int64_t at = 0, b = 0; at < visible(count - 1); at += kCacheBlock, ++b) {
    const int64_t block_count = smaller(kCacheBlock, visible(count - 1) - at);
    int64_t first = 0;  // the queries that see this block are the last ones
    while (visible(first) <= at) ++first;

    transpose_keys(static_cast<const T*>(args.k_blocks[b]), block_count, dim, block);
    const Lanes scale = Lanes::set1(args.scale);
    const auto keep = [&](int64_t i, int64_t lane, Lanes sum) { (sum * scale).store(scores[first + i] + lane); };
    product_queries(queries + first, count - first, dim, block, kCacheBlock, kCacheBlock, keep);
    for (int64_t i = first; i < count; ++i) {
      softmax[i].add_block(scores[i], smaller(kCacheBlock, visible(i) - at), b == 0);
    }

    convert_values(static_cast<const T*>(args.v_blocks[b]), block_count, dim, block);
    for (int64_t i = first, last; i < count; i = last) {  // runs of queries that see equally far
      const int64_t depth = smaller(kCacheBlock, visible(i) - at);
      for (last = i + 1; last < count && smaller(kCacheBlock, visible(last) - at) == depth;) ++last;
      const auto fold = [&](int64_t q, int64_t d, Lanes sum) {
        const int64_t width = smaller(Lanes::kCount, dim - d);
        float* out = outs[i + q] + d;
        const Softmax& s = softmax[i + q];
        if (b > 0) {
          const Lanes before = width == Lanes::kCount ? Lanes::load(out) : load_part(out, width);
          sum = fma(sum, Lanes::set1(s.take), before * Lanes::set1(s.keep));
        }
        if (width == Lanes::kCount) {
          sum.store(out);
        } else {
          store_part(sum, out, width);
        }
      };
      product_queries(weights + i, last - i, depth, block, padded, padded, fold);
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    const Lanes sum = Lanes::set1(softmax[i].sum);
    map(outs[i], outs[i], outs[i], dim, [&](Lanes out, Lanes) { return out / sum; });
  }
}

template <typename T>
void attention(const AttentionArgs& args) {
  const int64_t queries = args.rows * args.group;
  for (int64_t begin = 0; begin < queries; begin += kQueryChunk) {
    attend<T>(args, begin, smaller(queries, begin + kQueryChunk));
  }
}

}  // namespace
}  // namespace edge_kit
