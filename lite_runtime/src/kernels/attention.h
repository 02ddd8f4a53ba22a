// Attention over `Lanes`. Queries (row, head) are taken in chunks; the chunk meets one block of the cache
// after the other. Lanes are keys for the scores and dims for the values, as both lie in the cache, and both
// products add in order, so a query's result does not depend on the chunk that it is in. A chunk of few
// queries converts the cache as it reads it; a larger one converts each block once.
#pragma once

#include "float_ops.h"

namespace edge_kit {
namespace {

constexpr int kQueryBlock = 6;       // queries per register block
constexpr int64_t kQueryChunk = 48;  // queries per pass over the cache
constexpr int64_t kFewQueries = 12;  // up to here two conversions cost less than a copy in fp32

constexpr int64_t round_up(int64_t n) { return (n + Lanes::kCount - 1) / Lanes::kCount * Lanes::kCount; }

template <typename T>
constexpr bool kIsInt8 = false;
template <>
constexpr bool kIsInt8<int8_t> = true;

template <typename T>
constexpr bool kFromCache = sizeof(T) < sizeof(float);  // else a copy, or the cache of exact mode

// Keys [dim, kCacheBlock] or values [kCacheBlock, dim] of a head, or a copy with padded rows.
template <typename T>
struct Plane {
  const T* data;
  int64_t stride;
  const float* scale;  // [rows] of int8, else unused
  const T* next;       // what is read after it, null if unknown

  Lanes load(int64_t row, int64_t column) const {
    const Lanes x = Lanes::load(data + row * stride + column);
    if constexpr (kIsInt8<T>) return x * Lanes::set1(scale[row]);
    return x;
  }
  Lanes load_part(int64_t row, int64_t column, int64_t count) const {
    const Lanes x = edge_kit::load_part(data + row * stride + column, count);
    if constexpr (kIsInt8<T>) return x * Lanes::set1(scale[row]);
    return x;
  }
};

template <typename T>
Plane<T> plane_at(const void* p, int64_t columns, int64_t dim, const void* next) {
  const T* data = static_cast<const T*>(p);
  return {data, columns, kIsInt8<T> ? reinterpret_cast<const float*>(data + kCacheBlock * dim) : nullptr,
          static_cast<const T*>(next)};
}

// rows of `plane` -> out [rows, round_up(columns)], zero padded.
template <typename T>
Plane<float> copy_plane(const Plane<T>& plane, int64_t rows, int64_t columns, float* out) {
  const int64_t stride = round_up(columns);
  for (int64_t r = 0; r < rows; ++r) {
    int64_t c = 0;
    for (; c + Lanes::kCount <= columns; c += Lanes::kCount) {
      if (plane.next != nullptr) prefetch(plane.next + r * columns + c);
      plane.load(r, c).store(out + r * stride + c);
    }
    if (c < columns) plane.load_part(r, c, columns - c).store(out + r * stride + c);
  }
  return {out, stride, nullptr, nullptr};
}

// store(i, lane, sum) for the Q queries and L Lanes from `lane` on, sum = sum_k a[i][k] * b[k][lane].
// Not inlined: among the registers of a larger function the sums would not find room.
template <int Q, int L, typename T, typename Store>
__attribute__((noinline)) void product(const float* const* a, int64_t depth, const Plane<T>& b, int64_t lane,
                                       const Store& store) {
  constexpr int64_t kLine = 64 / sizeof(T);
  Lanes sums[Q][L];
  EDGE_KIT_UNROLL for (int i = 0; i < Q; ++i) {
    EDGE_KIT_UNROLL for (int l = 0; l < L; ++l) sums[i][l] = Lanes::set1(0.0f);
  }
  for (int64_t k = 0; k < depth; ++k) {
    if (kFromCache<T> && b.next != nullptr) {
      // Rows of four pages in turn keep four of the hardware's own streams going.
      const T* ahead = b.next + (k % 4 * (depth / 4) + k / 4) * b.stride + lane;
      EDGE_KIT_UNROLL for (int64_t at = 0; at < L * Lanes::kCount; at += kLine) {
        __builtin_prefetch(ahead + at, 0, 2);  // to the second level: the first has too few buffers for it
      }
    }
    Lanes row[L];
    EDGE_KIT_UNROLL for (int l = 0; l < L; ++l) row[l] = b.load(k, lane + l * Lanes::kCount);
    EDGE_KIT_UNROLL for (int i = 0; i < Q; ++i) {
      const Lanes value = Lanes::set1(a[i][k]);
      EDGE_KIT_UNROLL for (int l = 0; l < L; ++l) sums[i][l] = fma(value, row[l], sums[i][l]);
    }
  }
  EDGE_KIT_UNROLL for (int i = 0; i < Q; ++i) {
    EDGE_KIT_UNROLL for (int l = 0; l < L; ++l) store(i, lane + l * Lanes::kCount, sums[i][l]);
  }
}

template <int Q, typename T, int L = Lanes::block(Q, kFromCache<T>), typename Store>
void product_lanes(const float* const* a, int64_t depth, const Plane<T>& b, int64_t lanes, const Store& store,
                   int64_t lane = 0) {
  constexpr int64_t kStep = L * Lanes::kCount;
  for (; lane + kStep <= lanes; lane += kStep) product<Q, L>(a, depth, b, lane, store);
  if constexpr (L > 1) {
    if (lane < lanes) product_lanes<Q, T, L / 2>(a, depth, b, lanes, store, lane);
  }
}

// The same for `count` queries; `store` gets the index among them.
template <int Q = kQueryBlock, typename T, typename Store>
void product_queries(const float* const* a, int64_t count, int64_t depth, const Plane<T>& b, int64_t lanes,
                     const Store& store, int64_t first = 0) {
  if constexpr (Q > 0) {
    for (; first + Q <= count; first += Q) {
      product_lanes<Q>(a + first, depth, b, lanes,
                       [&](int i, int64_t lane, Lanes sum) { store(first + i, lane, sum); });
    }
    if (first < count) product_queries<Q - 1>(a, count, depth, b, lanes, store, first);
  }
}

// scores [kCacheBlock], `count` of them real -> exp(score - max), 0 past count.
void exponentials(float* scores, int64_t count, float* max, float* sum) {
  for (int64_t j = count; j < kCacheBlock; ++j) scores[j] = -__builtin_inff();
  Lanes largest = Lanes::load(scores);
  for (int64_t j = Lanes::kCount; j < kCacheBlock; j += Lanes::kCount) {
    largest = edge_kit::max(largest, Lanes::load(scores + j));
  }
  *max = largest.max();
  Lanes total = Lanes::set1(0.0f);
  for (int64_t j = 0; j < kCacheBlock; j += Lanes::kCount) {
    const Lanes p = exp(Lanes::load(scores + j) - Lanes::set1(*max));
    p.store(scores + j);
    total = total + p;
  }
  *sum = total.sum();
}

// One query's softmax over the blocks so far.
struct Softmax {
  float max, sum;
  float keep, take;  // factors of the earlier blocks' values and of this block's

  void add_block(float block_max, float block_sum, bool first) {
    float exps[Lanes::kCount] = {};
    const float new_max = first || block_max > max ? block_max : max;
    exps[0] = first ? -__builtin_inff() : max - new_max;
    exps[1] = block_max - new_max;
    exp(Lanes::load(exps)).store(exps);
    keep = exps[0];
    take = exps[1];
    sum = first ? block_sum : sum * keep + block_sum * take;
    max = new_max;
  }
};

const float* query_at(const AttentionArgs& args, int64_t i) {
  return args.q + i / args.group * args.q_stride + i % args.group * args.dim;
}

float* out_at(const AttentionArgs& args, int64_t i) {
  return args.out + i / args.group * args.out_stride + i % args.group * args.dim;
}

float* partial_at(const AttentionArgs& args, int64_t block, int64_t i) {
  return args.partials + (block * args.rows * args.group + i) * partial_floats(args.dim);
}

void divide(float* out, float sum, int64_t dim) {
  map(out, out, out, dim, [&](Lanes x, Lanes) { return x / Lanes::set1(sum); });
}

// What is done with a product's sums, as types of their own: a lambda would be another type, and the products
// compiled once more, for every caller.
struct KeepScores {
  float (*scores)[kCacheBlock];
  Lanes scale;

  void operator()(int64_t q, int64_t lane, Lanes sum) const { (sum * scale).store(scores[q] + lane); }
};

struct FoldValues {
  float* const* outs;
  const Softmax* softmax;
  int64_t dim;
  bool folds;  // into the values of earlier blocks

  void operator()(int64_t q, int64_t d, Lanes sum) const {
    const int64_t width = smaller(Lanes::kCount, dim - d);
    float* out = outs[q] + d;
    if (folds) {
      const Softmax& s = softmax[q];
      const Lanes before = width == Lanes::kCount ? Lanes::load(out) : load_part(out, width);
      sum = fma(sum, Lanes::set1(s.take), before * Lanes::set1(s.keep));
    }
    if (width == Lanes::kCount) {
      sum.store(out);
    } else {
      store_part(sum, out, width);
    }
  }
};

// Queries [begin, begin + count) of args, counted over [rows, group]; count is at most kQueryChunk.
class QueryChunk {
 public:
  QueryChunk(const AttentionArgs& args, int64_t begin, int64_t count)
      : args_(args), begin_(begin), count_(count) {
    for (int64_t i = 0; i < count; ++i) {
      queries_[i] = query_at(args, begin + i);
      outs_[i] = out_at(args, begin + i);
      weights_[i] = scores_[i];
    }
  }

  // Block `b`; `visible(i)` of its tokens are seen by query i.
  template <typename T, typename Visible>
  void meet(int64_t b, const Plane<T>& keys, const Plane<T>& values, const Visible& visible) {
    const int64_t dim = args_.dim;
    const bool few = count_ <= kFewQueries && dim % Lanes::kCount == 0;
    if (few) {
      add_scores(b, keys, visible);
      add_values(b, values, visible);
    } else {
      add_scores(b, copy_plane(keys, dim, kCacheBlock, copy_), visible);
      add_values(b, copy_plane(values, visible(count_ - 1), dim, copy_), visible);
    }
  }

  void finish() {
    for (int64_t i = 0; i < count_; ++i) divide(outs_[i], softmax_[i].sum, args_.dim);
  }

 private:
  template <typename T, typename Visible>
  void add_scores(int64_t b, const Plane<T>& keys, const Visible& visible) {
    const KeepScores keep = {scores_, Lanes::set1(args_.scale)};
    product_queries(queries_, count_, args_.dim, keys, kCacheBlock, keep);
    for (int64_t i = 0; i < count_; ++i) {
      float max, sum;
      exponentials(scores_[i], visible(i), &max, &sum);
      if (args_.partials == nullptr) {
        softmax_[i].add_block(max, sum, b == 0);
      } else {
        float* partial = partial_at(args_, b, begin_ + i);
        partial[0] = max;
        partial[1] = sum;
        outs_[i] = partial + kPartialValues;
      }
    }
  }

  template <typename T, typename Visible>
  void add_values(int64_t b, const Plane<T>& values, const Visible& visible) {
    const int64_t dim = args_.dim;
    const bool folds = b > 0 && args_.partials == nullptr;
    for (int64_t i = 0, last; i < count_; i = last) {  // runs of queries that see equally far
      const int64_t depth = visible(i);
      for (last = i + 1; last < count_ && visible(last) == depth;) ++last;
      const FoldValues fold = {outs_ + i, softmax_ + i, dim, folds};
      product_queries(weights_ + i, last - i, depth, values, round_up(dim), fold);
    }
  }

  const AttentionArgs& args_;
  const int64_t begin_, count_;
  const float* queries_[kQueryChunk];
  const float* weights_[kQueryChunk];
  float* outs_[kQueryChunk];
  Softmax softmax_[kQueryChunk];
  alignas(64) float scores_[kQueryChunk][kCacheBlock];
  alignas(64) float copy_[kCacheBlock * kMaxHeadDim];  // of keys, then of values, in fp32
};

// T: elements of the earlier blocks, Own: of the rows' own.
template <typename T, typename Own>
void attention(const AttentionArgs& args) {
  const int64_t dim = args.dim, n_queries = args.rows * args.group, own = args.n_blocks() - 1;
  const int64_t first = args.partials ? args.block_begin : 0, last = args.partials ? args.block_end : own + 1;
  const int64_t end = smaller(own, last);  // of the earlier blocks
  const auto next = [&](int64_t b, int64_t at) { return b + 1 < end ? args.blocks[b + 1] + at : nullptr; };
  for (int64_t begin = 0; begin < n_queries; begin += kQueryChunk) {
    QueryChunk chunk(args, begin, smaller(kQueryChunk, n_queries - begin));
    for (int64_t b = first; b < end; ++b) {
      const uint8_t* block = args.blocks[b];
      chunk.meet(b, plane_at<T>(block + args.keys_at, kCacheBlock, dim, next(b, args.keys_at)),
                 plane_at<T>(block + args.values_at, dim, dim, next(b, args.values_at)),
                 [](int64_t) { return kCacheBlock; });
    }
    if (last > own) {
      chunk.meet(own, plane_at<Own>(args.own_keys, kCacheBlock, dim, nullptr),
                 plane_at<Own>(args.own_values, dim, dim, nullptr), [&](int64_t i) {
                   return args.first_visible + (begin + i) / args.group - own * kCacheBlock;
                 });
    }
    if (args.partials == nullptr) chunk.finish();
  }
}

void fold_partials(const AttentionArgs& args) {
  for (int64_t i = 0; i < args.rows * args.group; ++i) {
    float* out = out_at(args, i);
    Softmax softmax = {};
    for (int64_t b = 0; b < args.n_blocks(); ++b) {
      const float* partial = partial_at(args, b, i);
      softmax.add_block(partial[0], partial[1], b == 0);
      const Lanes keep = Lanes::set1(softmax.keep), take = Lanes::set1(softmax.take);
      map(partial + kPartialValues, b == 0 ? partial + kPartialValues : out, out, args.dim,
          [&](Lanes values, Lanes before) { return b == 0 ? values : fma(values, take, before * keep); });
    }
    divide(out, softmax.sum, args.dim);
  }
}

void quantize_plane(const uint16_t* x, int64_t rows, int64_t columns, int8_t* plane) {
  float* scale = reinterpret_cast<float*>(plane + rows * columns);
  const auto part = [&](int64_t i) {
    return i + Lanes::kCount <= columns ? Lanes::load(x + i) : load_part(x + i, columns - i);
  };
  for (int64_t r = 0; r < rows; ++r, x += columns, plane += columns) {
    const Lanes zero = Lanes::set1(0.0f);
    Lanes largest = zero, nothing = zero;  // NaN where x is a NaN or an infinity
    for (int64_t i = 0; i < columns; i += Lanes::kCount) {
      const Lanes value = part(i);
      largest = max(largest, max(value, zero - value));
      nothing = nothing + value * zero;
    }
    const float most = largest.max();
    const bool finite = nothing.sum() == 0.0f, regular = finite && most > 0.0f;
    const Lanes inverse = Lanes::set1(127.0f / most);
    for (int64_t i = 0; i < columns; i += Lanes::kCount) {
      float whole[Lanes::kCount];
      round(part(i) * inverse).store(whole);
      for (int64_t j = 0; j < smaller(Lanes::kCount, columns - i); ++j) {
        plane[i + j] = regular ? static_cast<int8_t>(whole[j]) : 0;
      }
    }
    scale[r] = regular ? most / 127.0f : finite ? 0.0f : __builtin_nanf("");
  }
}

}  // namespace
}  // namespace edge_kit
