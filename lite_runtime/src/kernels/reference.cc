// The portable path: the plain meaning of every kernel, against which the others are tested.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "paths.h"

namespace edge_kit {
namespace {

constexpr float kTiny = 0x1p-120f;

void quantize_row(const float* x, int64_t k, int8_t* values, float* scale, int32_t* offset) {
  for (int64_t begin = 0, g = 0; begin < k; begin += kGroup, ++g) {
    const int64_t count = std::min(kGroup, k - begin);
    int8_t* out = values + begin;
    std::memset(out, 0, kGroup);
    scale[g] = 0.0f;
    offset[g] = 0;
    float largest = 0.0f;
    bool finite = true;
    for (int64_t i = 0; i < count; ++i) {
      finite = finite && std::isfinite(x[begin + i]);
      largest = std::max(largest, std::fabs(x[begin + i]));
    }
    if (!finite) scale[g] = std::numeric_limits<float>::quiet_NaN();
    if (!finite || largest < kTiny) continue;
    const float inverse = 127.0f / largest;
    int32_t sum = 0;
    for (int64_t i = 0; i < count; ++i) {
      out[i] = static_cast<int8_t>(std::nearbyint(x[begin + i] * inverse));
      sum += out[i];
    }
    scale[g] = largest / 127.0f;
    offset[g] = -128 * sum;
  }
}

// The weights of outputs [n, n + count) for inputs [k_begin, k_end), reordered to w[k - k_begin][output].
// Positions past `count` are zero.
void load_weights(const Weight& w, int64_t n, int64_t count, int64_t k_begin, int64_t k_end,
                  int8_t (*out)[kTileN]) {
  const int8_t* data = static_cast<const int8_t*>(w.data);
  if (w.layout == WeightLayout::kTiles) {
    const int8_t* tile = data + n * w.k;
    for (int64_t k = k_begin; k < k_end; ++k) {
      const int8_t* quad = tile + k / kTileK * (kTileN * kTileK) + k % kTileK;
      for (int64_t i = 0; i < kTileN; ++i) out[k - k_begin][i] = quad[i * kTileK];
    }
    return;
  }
  for (int64_t k = k_begin; k < k_end; ++k) {
    for (int64_t i = 0; i < kTileN; ++i) out[k - k_begin][i] = i < count ? data[(n + i) * w.k + k] : 0;
  }
}

// y[n + i] = sums[i] * scale + bias.
void finish(const Weight& w, const float* sums, int64_t n, int64_t count, float* y) {
  for (int64_t i = 0; i < count; ++i) {
    const float scale = w.scale ? w.scale[n + i] : 1.0f;
    y[n + i] = sums[i] * scale + (w.bias ? w.bias[n + i] : 0.0f);
  }
}

void linear_int8(const Weight& w, const QuantizedRows& x, float* y, int64_t y_stride, int64_t n_begin,
                 int64_t n_end) {
  int8_t block[kGroup][kTileN];
  for (int64_t n = n_begin; n < n_end; n += kTileN) {
    const int64_t count = std::min(kTileN, n_end - n);
    for (int64_t r = 0; r < x.rows; ++r) {
      float sums[kTileN] = {};
      for (int64_t g = 0; g < x.groups; ++g) {
        const int64_t k_begin = g * kGroup, k_end = std::min(w.k, k_begin + kGroup);
        const int8_t* values = x.values + (r * x.groups + g) * kGroup;
        load_weights(w, n, count, k_begin, k_end, block);
        int32_t dot[kTileN] = {};
        for (int64_t k = 0; k < k_end - k_begin; ++k) {
          for (int64_t i = 0; i < kTileN; ++i) dot[i] += block[k][i] * values[k];
        }
        const float scale = x.scale[r * x.groups + g];
        for (int64_t i = 0; i < kTileN; ++i) sums[i] = std::fma(scale, static_cast<float>(dot[i]), sums[i]);
      }
      finish(w, sums, n, count, y + r * y_stride);
    }
  }
}

void linear_float(const Weight& w, const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride,
                  int64_t n_begin, int64_t n_end) {
  int8_t block[kGroup][kTileN];
  for (int64_t n = n_begin; n < n_end; n += kTileN) {
    const int64_t count = std::min(kTileN, n_end - n);
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = x + r * x_stride;
      float sums[kTileN] = {};
      for (int64_t k_begin = 0; w.is_int8 && k_begin < w.k; k_begin += kGroup) {
        const int64_t k_end = std::min(w.k, k_begin + kGroup);
        load_weights(w, n, count, k_begin, k_end, block);
        for (int64_t k = k_begin; k < k_end; ++k) {
          for (int64_t i = 0; i < kTileN; ++i) sums[i] += row[k] * static_cast<float>(block[k - k_begin][i]);
        }
      }
      for (int64_t i = 0; !w.is_int8 && i < count; ++i) {
        const float* weights = static_cast<const float*>(w.data) + (n + i) * w.k;
        for (int64_t k = 0; k < w.k; ++k) sums[i] += row[k] * weights[k];
      }
      finish(w, sums, n, count, y + r * y_stride);
    }
  }
}

// e^x: x = n ln2 + r, the Taylor series of e^r, times 2^n; 0 below -87.7, infinity above 88.3.
float exp_of(float x) {
  x = std::min(89.0f, std::max(-88.0f, x));
  const float n = std::nearbyint(x * 1.44269504f);
  const float r = std::fma(n, -1.42860682e-6f, std::fma(n, -0.693145752f, x));
  float sum = 1.0f / 5040;
  for (const float term : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    sum = std::fma(sum, r, term);
  if (n <= -127.0f) return 0.0f;
  return n >= 128.0f ? std::numeric_limits<float>::infinity() : std::ldexp(sum, static_cast<int>(n));
}

// A sum in kSumLanes running sums, then lanes i and i + 8, 4, 2, 1.
struct LaneSum {
  float lanes[kSumLanes] = {};
  float total() const {
    float x[kSumLanes];
    std::copy(lanes, lanes + kSumLanes, x);
    for (int64_t half = kSumLanes / 2; half > 0; half /= 2) {
      for (int64_t i = 0; i < half; ++i) x[i] += x[i + half];
    }
    return x[0];
  }
};

void rms_norm(const float* x, const float* weight, float eps, int64_t k, float* y) {
  LaneSum squares;
  for (int64_t i = 0; i < k; ++i) squares.lanes[i % kSumLanes] += x[i] * x[i];
  const float inverse = 1.0f / std::sqrt(squares.total() / static_cast<float>(k) + eps);
  for (int64_t i = 0; i < k; ++i) y[i] = x[i] * inverse * weight[i];
}

void rope(float* x, const float* cos, const float* sin, int64_t heads, int64_t dim) {
  const int64_t half = dim / 2;
  for (int64_t h = 0; h < heads; ++h, x += dim) {
    for (int64_t i = 0; i < half; ++i) {
      const float a = x[i], b = x[half + i];
      x[i] = a * cos[i] - b * sin[i];
      x[half + i] = b * cos[half + i] + a * sin[half + i];
    }
  }
}

void silu_mul(const float* gate, const float* up, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = gate[i] / (1.0f + exp_of(-gate[i])) * up[i];
}

void add(const float* a, const float* b, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

uint16_t f16_from_f32(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));  // NaN
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // rounds to 65536 or more
  if (magnitude < 0x38800000) {  // below 2^-14: fp32 addition to 0.5 rounds to a multiple of 2^-24
    float shifted;
    std::memcpy(&shifted, &magnitude, sizeof shifted);
    shifted += 0.5f;
    std::memcpy(&bits, &shifted, sizeof bits);
    return static_cast<uint16_t>(sign | (bits - 0x3f000000));
  }
  const uint32_t odd = magnitude >> 13 & 1;
  return static_cast<uint16_t>(sign | (magnitude - 0x38000000 + 0xfff + odd) >> 13);
}

float to_f32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, exponent = half >> 10 & 31,
                 mantissa = half & 0x3ff;
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -value : value;
  }
  const uint32_t bits = sign | (exponent == 31 ? 0x7f800000 : (exponent + 112) << 23) | mantissa << 13;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

float to_f32(float value) { return value; }

void to_f16(const float* x, uint16_t* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = f16_from_f32(x[i]);
}

float to_f32(int8_t value) { return static_cast<float>(value); }

// A head's keys [dim, kCacheBlock] or values [kCacheBlock, dim].
template <typename T>
struct Plane {
  Plane(const void* plane, int64_t size) : data(static_cast<const T*>(plane)) {
    if (std::is_same_v<T, int8_t>) scale = reinterpret_cast<const float*>(data + size);
  }
  float at(int64_t row, int64_t columns, int64_t column) const {
    const float value = to_f32(data[row * columns + column]);
    return scale != nullptr ? value * scale[row] : value;
  }
  const T* data;
  const float* scale = nullptr;  // [rows]
};

struct Partial {
  float max, sum;
  float values[kMaxHeadDim];
};

// One query and the first `count` tokens of one block.
template <typename T>
void attend_block(const AttentionArgs& args, const float* q, const void* k, const void* v, int64_t count,
                  Partial* partial) {
  const int64_t dim = args.dim;
  const Plane<T> keys(k, dim * kCacheBlock), values(v, dim * kCacheBlock);
  float p[kCacheBlock];
  partial->max = -std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < count; ++j) {
    float score = 0.0f;
    for (int64_t d = 0; d < dim; ++d) score = std::fma(q[d], keys.at(d, kCacheBlock, j), score);
    p[j] = score * args.scale;
    partial->max = std::max(partial->max, p[j]);
  }
  LaneSum sum;
  std::fill(partial->values, partial->values + dim, 0.0f);
  for (int64_t j = 0; j < count; ++j) {
    p[j] = exp_of(p[j] - partial->max);
    sum.lanes[j % kSumLanes] += p[j];
    for (int64_t d = 0; d < dim; ++d) {
      partial->values[d] = std::fma(p[j], values.at(j, dim, d), partial->values[d]);
    }
  }
  partial->sum = sum.total();
}

// The softmax over the blocks so far.
struct Folded {
  float max = 0.0f, sum = 0.0f;

  void add(float block_max, float block_sum, const float* values, int64_t dim, bool first, float* out) {
    if (first) {
      std::copy(values, values + dim, out);
      max = block_max;
      sum = block_sum;
      return;
    }
    const float new_max = std::max(max, block_max);
    const float keep = exp_of(max - new_max), take = exp_of(block_max - new_max);
    for (int64_t d = 0; d < dim; ++d) out[d] = std::fma(values[d], take, out[d] * keep);
    sum = sum * keep + block_sum * take;
    max = new_max;
  }
};

// function(query, index, out) for all queries.
template <typename Function>
void for_queries(const AttentionArgs& args, const Function& function) {
  for (int64_t i = 0; i < args.rows * args.group; ++i) {
    const int64_t row = i / args.group, head = i % args.group;
    function(args.q + row * args.q_stride + head * args.dim, i,
             args.out + row * args.out_stride + head * args.dim);
  }
}

float* partial_of(const AttentionArgs& args, int64_t block, int64_t query) {
  return args.partials + (block * args.rows * args.group + query) * partial_floats(args.dim);
}

template <typename T, typename Own>
void attention(const AttentionArgs& args) {
  const int64_t own = args.n_blocks() - 1;
  const int64_t begin = args.partials ? args.block_begin : 0, end = args.partials ? args.block_end : own + 1;
  for_queries(args, [&](const float* q, int64_t i, float* out) {
    Partial partial;
    Folded folded;
    for (int64_t b = begin; b < end; ++b) {
      if (b < own) {
        const uint8_t* block = args.blocks[b];
        attend_block<T>(args, q, block + args.keys_at, block + args.values_at, kCacheBlock, &partial);
      } else {
        const int64_t count = args.first_visible + i / args.group - own * kCacheBlock;
        attend_block<Own>(args, q, args.own_keys, args.own_values, count, &partial);
      }
      if (args.partials == nullptr) {
        folded.add(partial.max, partial.sum, partial.values, args.dim, b == 0, out);
        continue;
      }
      float* to = partial_of(args, b, i);
      to[0] = partial.max;
      to[1] = partial.sum;
      std::copy(partial.values, partial.values + args.dim, to + kPartialValues);
    }
    for (int64_t d = 0; d < args.dim && args.partials == nullptr; ++d) out[d] /= folded.sum;
  });
}

void fold_partials(const AttentionArgs& args) {
  for_queries(args, [&](const float*, int64_t i, float* out) {
    Folded folded;
    for (int64_t b = 0; b < args.n_blocks(); ++b) {
      const float* partial = partial_of(args, b, i);
      folded.add(partial[0], partial[1], partial + kPartialValues, args.dim, b == 0, out);
    }
    for (int64_t d = 0; d < args.dim; ++d) out[d] /= folded.sum;
  });
}

void quantize_plane(const uint16_t* x, int64_t rows, int64_t columns, int8_t* plane) {
  float* scale = reinterpret_cast<float*>(plane + rows * columns);
  for (int64_t r = 0; r < rows; ++r, x += columns, plane += columns) {
    float largest = 0.0f;
    bool finite = true;
    for (int64_t i = 0; i < columns; ++i) {
      finite = finite && std::isfinite(to_f32(x[i]));
      largest = std::max(largest, std::fabs(to_f32(x[i])));
    }
    const bool regular = finite && largest > 0.0f;
    const float inverse = 127.0f / largest;
    for (int64_t i = 0; i < columns; ++i) {
      plane[i] = regular ? static_cast<int8_t>(std::nearbyint(to_f32(x[i]) * inverse)) : 0;
    }
    scale[r] = regular ? largest / 127.0f : finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  }
}

uint64_t read_stream(const uint8_t* data, size_t bytes, int streams) {
  const size_t words = bytes / sizeof(uint64_t) / static_cast<size_t>(streams);
  uint64_t sum = 0;
  for (size_t i = 0; i < words; ++i) {
    for (int s = 0; s < streams; ++s) {
      uint64_t word;
      std::memcpy(&word, data + (static_cast<size_t>(s) * words + i) * sizeof word, sizeof word);
      sum += word;
    }
  }
  return sum;
}

}  // namespace

const Kernels kScalarKernels = {
    "scalar", quantize_row, linear_int8, linear_float, rms_norm, rope, silu_mul, add,
    attention<uint16_t, uint16_t>, attention<float, float>, attention<int8_t, uint16_t>, fold_partials,
    quantize_plane, to_f16, read_stream,
};

}  // namespace edge_kit
