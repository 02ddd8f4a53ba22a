// Every kernel path of this CPU against the scalar one, and the scalar one against plain formulas.
#include <limits>

#include "kernel_cases.h"

using namespace edge_kit;
using namespace edge_kit_test;

namespace {

struct Quantized {
  Quantized(const Kernels& kernels, const std::vector<float>& x, int64_t rows, int64_t k)
      : groups((k + kGroup - 1) / kGroup), values(rows * groups * kGroup), scale(rows * groups), offset(rows * groups) {
    for (int64_t r = 0; r < rows; ++r) {
      kernels.quantize_row(x.data() + r * k, k, values.get() + r * groups * kGroup, scale.get() + r * groups,
                           offset.get() + r * groups);
    }
  }
  QuantizedRows view(int64_t first, int64_t rows) const {
    const int64_t at = first * groups;
    return {values.get() + at * kGroup, scale.get() + at, offset.get() + at, rows, groups};
  }
  int64_t groups;
  Exact<int8_t> values;
  Exact<float> scale;
  Exact<int32_t> offset;
};

struct Layer {
  Layer(int64_t n, int64_t k, WeightLayout layout, bool with_bias)
      : weights(n * k), scale(normals(n, 0.01f)), bias(normals(n)) {
    for (int64_t i = 0; i < n * k; ++i) weights.get()[i] = i % 97 == 0 ? int8_t{-128} : any_byte();
    view = {weights.get(), scale.data(), with_bias ? bias.data() : nullptr, n, k, layout, true};
  }
  int8_t at(int64_t n, int64_t k) const {
    if (view.layout == WeightLayout::kRows) return weights.get()[n * view.k + k];
    return weights.get()[((n / kTileN * (view.k / kTileK) + k / kTileK) * kTileN + n % kTileN) * kTileK + k % kTileK];
  }
  Exact<int8_t> weights;
  std::vector<float> scale, bias;
  Weight view;
};

using Output = std::vector<float>;

Output int8_output(const Kernels& kernels, const Layer& layer, const QuantizedRows& x, int64_t step) {
  const int64_t n = layer.view.n;
  Output y(static_cast<size_t>(x.rows * n), -1.0f);
  for (int64_t begin = 0; begin < n; begin += step) {
    kernels.linear_int8(layer.view, x, y.data(), n, begin, std::min(n, begin + step));
  }
  return y;
}

Output float_output(const Kernels& kernels, const Weight& w, const float* x, int64_t rows, int64_t step) {
  Output y(static_cast<size_t>(rows * w.n), -1.0f);
  for (int64_t begin = 0; begin < w.n; begin += step) {
    kernels.linear_float(w, x, w.k, rows, y.data(), w.n, begin, std::min(w.n, begin + step));
  }
  return y;
}

Output slice(const Output& y, int64_t row, int64_t n) { return Output(y.begin() + row * n, y.begin() + (row + 1) * n); }

TEST(dispatch) {
  CHECK(find_kernels("neon-of-another-cpu") == nullptr);
  CHECK(std::string(paths().back()->name) == "scalar");
  unsetenv("EDGE_KIT_ISA");
  CHECK(best_kernels() == paths().front());
  // Set where the CPU is known.
  if (const char* expected = std::getenv("EDGE_KIT_EXPECTED_PATH")) {
    CHECK_CASE(std::string(best_kernels()->name) == expected, std::string(expected));
  }
  for (const Kernels* kernels : paths()) {
    setenv("EDGE_KIT_ISA", kernels->name, 1);
    CHECK_CASE(best_kernels() == kernels, kernels->name);
  }
  unsetenv("EDGE_KIT_ISA");
}

TEST(quantize) {
  std::vector<float> x = normals(kGroup * 9 + 5);
  const auto group = [&x](int64_t g) { return x.data() + g * kGroup; };
  for (int i = 0; i < kGroup; ++i) {
    group(1)[i] = 0.0f;
    group(2)[i] = i == 3 ? 127.0f : static_cast<float>(i) - 16.5f;  // ties
    group(3)[i] *= 1e-38f;                                          // below 2^-120
    group(4)[i] *= 1e-30f;
    group(5)[i] *= 1e38f / 4;
  }
  group(6)[7] = std::numeric_limits<float>::quiet_NaN();
  group(7)[kGroup - 1] = -std::numeric_limits<float>::infinity();
  const int64_t k = static_cast<int64_t>(x.size());
  const Quantized expected(scalar(), x, 1, k);
  CHECK(expected.scale.get()[1] == 0.0f && expected.scale.get()[3] == 0.0f);
  CHECK(expected.scale.get()[2] == 1.0f);
  const int8_t* ties = expected.values.get() + 2 * kGroup;
  CHECK(ties[0] == -16 && ties[1] == -16 && ties[2] == -14);
  CHECK(std::isnan(expected.scale.get()[6]) && std::isnan(expected.scale.get()[7]));
  for (int64_t g = 0; g < expected.groups; ++g) {
    int32_t sum = 0;
    for (int64_t i = 0; i < kGroup; ++i) {
      const int64_t at = g * kGroup + i;
      const float value = expected.values.get()[at], s = expected.scale.get()[g];
      sum += expected.values.get()[at];
      if (at < k && g != 3 && g != 6 && g != 7) CHECK(std::fabs(value * s - x[at]) <= 0.5001f * s);
      if (at >= k) CHECK(value == 0);
    }
    CHECK(expected.offset.get()[g] == -128 * sum);
  }
  for (const Kernels* kernels : paths()) {
    const Quantized q(*kernels, x, 1, k);
    CHECK_CASE(std::memcmp(q.values.get(), expected.values.get(), q.values.size) == 0, kernels->name);
    CHECK_CASE(std::memcmp(q.offset.get(), expected.offset.get(), q.offset.size * 4) == 0, kernels->name);
    for (int64_t g = 0; g < q.groups; ++g) {
      const float a = q.scale.get()[g], b = expected.scale.get()[g];
      CHECK_CASE(a == b || (std::isnan(a) && std::isnan(b)), kernels->name);
    }
  }
}

// Plain formula in the order that kernels.h fixes.
float expected_output(const Layer& layer, const QuantizedRows& x, int64_t r, int64_t n) {
  float sum = 0.0f;
  for (int64_t g = 0; g < x.groups; ++g) {
    int32_t dot = 0;
    for (int64_t k = g * kGroup; k < std::min(layer.view.k, (g + 1) * kGroup); ++k) {
      dot += layer.at(n, k) * x.values[r * x.groups * kGroup + k];
    }
    sum = std::fma(x.scale[r * x.groups + g], static_cast<float>(dot), sum);
  }
  return sum * layer.scale[n] + (layer.view.bias ? layer.bias[n] : 0.0f);
}

void check_linear(int64_t n, int64_t k, WeightLayout layout, int64_t most_rows = 33) {
  if (is_slow() && n * k > 1 << 17) return;
  const Layer layer(n, k, layout, (n + k) % 2 == 0);
  std::vector<float> x = normals(most_rows * k);
  std::fill(x.begin() + k, x.begin() + 2 * k, 0.0f);  // row 1
  x[2 * k] = 1000.0f;                                 // an outlier in row 2
  const Quantized q(scalar(), x, most_rows, k);
  const std::string shape = " N " + std::to_string(n) + " K " + std::to_string(k) +
                            (layout == WeightLayout::kTiles ? " tiles" : " rows");
  const Output int8_all = int8_output(scalar(), layer, q.view(0, most_rows), n);
  const Output float_all = float_output(scalar(), layer.view, x.data(), 5, n);
  for (const int64_t at : {int64_t{0}, n - 1}) {
    for (const int64_t r : {int64_t{0}, int64_t{1}, int64_t{2}, most_rows - 1}) {
      CHECK_CASE(int8_all[r * n + at] == expected_output(layer, q.view(0, most_rows), r, at), shape);
    }
    CHECK_CASE(int8_all[n + at] == (layer.view.bias ? layer.bias[at] : 0.0f), shape);
  }
  for (const Kernels* kernels : paths()) {
    const std::string name = kernels->name + shape;
    for (const int64_t rows : {1, 2, 3, 5, 8, 9, 16, 17, 33, static_cast<int>(most_rows)}) {
      if (kernels == &scalar() && rows > 2) break;
      const Output y = int8_output(*kernels, layer, q.view(0, rows), n);
      CHECK_CASE(same_bits(y, Output(int8_all.begin(), int8_all.begin() + rows * n)), name);
    }
    CHECK_CASE(same_bits(int8_output(*kernels, layer, q.view(4, 1), kTileN), slice(int8_all, 4, n)), name);

    const Output y = float_output(*kernels, layer.view, x.data(), 5, n);
    CHECK_CASE(difference(y, float_all) < 1e-5, name);
    CHECK_CASE(same_bits(float_output(*kernels, layer.view, x.data() + 3 * k, 1, kTileN), slice(y, 3, n)), name);
  }
}

TEST(linears) {
  for (const int64_t k : {1, 7, 64, 1536, 1537, 8960}) {
    for (const int64_t n : {1, 3, 5, 256, 1536}) check_linear(n, k, WeightLayout::kRows);
  }
  for (const int64_t k : {4, 36, 64, 1536, 1540, 8960}) {
    for (const int64_t n : {16, 48, 256, 1536}) check_linear(n, k, WeightLayout::kTiles);
  }
  check_linear(80, 1124, WeightLayout::kTiles, 261);  // more rows than any path takes at once
}

TEST(float_weights) {
  const int64_t n = 37, k = 203, rows = 6;
  const std::vector<float> weights = normals(n * k), x = normals(rows * k);
  const Weight w = {weights.data(), nullptr, nullptr, n, k, WeightLayout::kRows, false};
  for (const Kernels* kernels : paths()) {
    const Output y = float_output(*kernels, w, x.data(), rows, n);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < n; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < k; ++j) sum += static_cast<double>(x[r * k + j]) * weights[i * k + j];
        CHECK_CASE(std::fabs(y[r * n + i] - sum) < 2e-5 * std::sqrt(static_cast<double>(k)), kernels->name);
      }
      CHECK_CASE(same_bits(float_output(*kernels, w, x.data() + r * k, 1, kTileN), slice(y, r, n)), kernels->name);
    }
  }
}

// The largest products that a group can hold, where a saturating path would lose bits.
TEST(extremes) {
  const int64_t n = 16, k = 32;
  for (const WeightLayout layout : {WeightLayout::kTiles, WeightLayout::kRows}) {
    for (const int weight : {-128, -127, 127}) {
      for (const float sign : {1.0f, -1.0f}) {
        Layer layer(n, k, layout, false);
        std::fill(layer.weights.get(), layer.weights.get() + n * k, static_cast<int8_t>(weight));
        std::fill(layer.scale.begin(), layer.scale.end(), 1.0f);
        const std::vector<float> x(32 * 25, sign * 127.0f);
        for (const Kernels* kernels : paths()) {
          const Quantized q(*kernels, x, 25, k);
          for (const int64_t rows : {7, 25}) {
            for (const float y : int8_output(*kernels, layer, q.view(0, rows), n)) {
              CHECK_CASE(y == sign * 127.0f * static_cast<float>(weight) * 32.0f, kernels->name);
            }
          }
        }
      }
    }
  }
}

TEST(elementwise) {
  for (const int64_t n : {1, 7, 15, 16, 17, 64, 576, 1537}) {
    const std::vector<float> a = normals(n, 3.0f), b = normals(n);
    std::vector<float> sum(a), gated(a), norm(a);
    for (int64_t i = 0; i < n; ++i) {
      sum[i] = a[i] + b[i];
      gated[i] = static_cast<float>(a[i] / (1.0 + std::exp(-static_cast<double>(a[i]))) * b[i]);
    }
    double squares = 0;
    for (const float value : a) squares += static_cast<double>(value) * value;
    for (int64_t i = 0; i < n; ++i) {
      norm[i] = static_cast<float>(a[i] / std::sqrt(squares / static_cast<double>(n) + 1e-6) * b[i]);
    }
    for (const Kernels* kernels : paths()) {
      const std::string name = kernels->name + std::string(" n ") + std::to_string(n);
      std::vector<float> y(a);
      kernels->add(y.data(), b.data(), y.data(), n);
      CHECK_CASE(same_bits(y, sum), name);
      std::vector<float> reference(a);
      y = b;
      kernels->silu_mul(a.data(), y.data(), y.data(), n);
      scalar().silu_mul(a.data(), b.data(), reference.data(), n);
      CHECK_CASE(difference(y, gated) < 1e-6 && same_bits(y, reference), name);
      kernels->rms_norm(a.data(), b.data(), 1e-6f, n, y.data());
      scalar().rms_norm(a.data(), b.data(), 1e-6f, n, reference.data());
      CHECK_CASE(difference(y, norm) < 1e-6 && same_bits(y, reference), name);
    }
  }
}

// silu(-x) = -x / (1 + e^x) shows the error of e^x; the ends must not give NaN.
TEST(exp) {
  std::vector<float> gate, up;
  for (float x = -87.0f; x < 87.0f; x += 0.0137f) gate.push_back(x);
  up.assign(gate.size(), 1.0f);
  std::vector<float> y(gate.size());
  const std::vector<float> ends = {1000.0f, -1000.0f, std::numeric_limits<float>::quiet_NaN(), 0.0f};
  for (const Kernels* kernels : paths()) {
    kernels->silu_mul(gate.data(), up.data(), y.data(), static_cast<int64_t>(y.size()));
    double worst = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      const double expected = gate[i] / (1.0 + std::exp(-static_cast<double>(gate[i])));
      if (expected != 0) worst = std::fmax(worst, std::fabs(y[i] / expected - 1.0));
    }
    CHECK_CASE(worst < 4e-7, kernels->name + std::string(" error ") + std::to_string(worst));
    kernels->silu_mul(ends.data(), up.data(), y.data(), 4);
    CHECK_CASE(y[0] == 1000.0f && std::fabs(y[1]) < 1e-30f && std::isnan(y[2]) && y[3] == 0.0f, kernels->name);
  }
}

TEST(rope) {
  for (const int64_t dim : {2, 10, 64, 80, 128}) {
    const int64_t heads = 3, half = dim / 2;
    const std::vector<float> x = normals(heads * dim), cos = normals(dim), sin = normals(dim);
    std::vector<float> expected(x.size());
    for (int64_t i = 0; i < heads * dim; ++i) {
      const int64_t d = i % dim;
      const float rotated = d < half ? -x[i + half] : x[i - half];
      expected[i] = x[i] * cos[d] + rotated * sin[d];
    }
    for (const Kernels* kernels : paths()) {
      std::vector<float> y(x);
      kernels->rope(y.data(), cos.data(), sin.data(), heads, dim);
      CHECK_CASE(same_bits(y, expected), kernels->name);
    }
  }
}

float from_f16(uint32_t half) {
  const int exponent = half >> 10 & 31;
  const float mantissa = static_cast<float>(half & 0x3ff);
  const float sign = half & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return sign * (mantissa == 0 ? INFINITY : std::numeric_limits<float>::quiet_NaN());
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024.0f + mantissa, exponent - 25));
}

TEST(f16) {
  std::vector<float> x;
  for (uint32_t half = 0; half < 0x10000; ++half) {  // every half, the ties between them and their neighbours
    const float value = from_f16(half);
    x.push_back(value);
    if ((half & 0x7fff) >= 0x7c00) continue;
    const float next = (half & 0x7fff) == 0x7bff ? std::copysign(65536.0f, value) : from_f16(half + 1);
    const float tie = (value + next) / 2;
    for (const float y : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, next * 2)}) x.push_back(y);
  }
  for (const float y : {1e-45f, -1e-45f, 1e-30f, 3.4e38f, -3.4e38f}) x.push_back(y);
  const int64_t n = static_cast<int64_t>(x.size());
  std::vector<uint16_t> expected(x.size());
  scalar().to_f16(x.data(), expected.data(), n);
  for (size_t i = 0; i < x.size(); ++i) {
    const uint16_t half = expected[i];
    if (std::isnan(x[i])) {
      CHECK((half & 0x7c00) == 0x7c00 && (half & 0x200) != 0);
      continue;
    }
    const float back = from_f16(half);
    if (std::isinf(back)) {
      CHECK(std::fabs(x[i]) >= 65520.0f);
      continue;
    }
    CHECK(std::signbit(back) == std::signbit(x[i]));
    const float error = std::fabs(back - x[i]);
    for (const int step : {-1, 1}) {  // no neighbour is nearer; at a tie the even one is taken
      if ((half & 0x7fff) == 0 && step < 0) continue;
      const uint32_t other = half + step;
      const double neighbour = (other & 0x7fff) == 0x7c00 ? std::copysign(65536.0, x[i]) : from_f16(other);
      const double other_error = std::fabs(neighbour - x[i]);
      CHECK(error < other_error || (error == other_error && (half & 1) == 0));
    }
  }
  for (const Kernels* kernels : paths()) {
    std::vector<uint16_t> y(x.size());
    kernels->to_f16(x.data(), y.data(), n);
    CHECK_CASE(y == expected, kernels->name);
    Exact<uint16_t> tail(5);
    kernels->to_f16(x.data() + 30000, tail.get(), 5);
    CHECK_CASE(std::memcmp(tail.get(), expected.data() + 30000, 10) == 0, kernels->name);
  }
}

TEST(read_stream) {
  const size_t bytes = 4096 * 8;
  Exact<uint8_t> data(bytes);
  uint64_t expected = 0;
  for (size_t i = 0; i < bytes; ++i) data.get()[i] = static_cast<uint8_t>(any_byte());
  for (size_t i = 0; i < bytes; i += 8) {
    uint64_t word;
    std::memcpy(&word, data.get() + i, 8);
    expected += word;
  }
  for (const Kernels* kernels : paths()) {
    for (const int streams : {1, 4, 8}) {
      CHECK_CASE(kernels->read_stream(data.get(), bytes, streams) == expected, kernels->name);
    }
  }
}

}  // namespace

int main() {
  for (const Kernels* kernels : paths()) std::printf("path %s\n", kernels->name);
  return run_tests();
}
