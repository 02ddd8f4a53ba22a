#include "plan/fingerprint.h"

#include "io/xxh64.h"

namespace edge_kit {
namespace {

constexpr int64_t kSamples = 8, kSampleBytes = 256;

class PlanHash {
 public:
  template <typename Number>
  void number(Number value) {
    hash_.add(&value, sizeof value);
  }

  template <typename... Numbers>
  void sizes(Numbers... values) {
    (number<int64_t>(values), ...);
  }

  void floats(const float* values, int64_t count) {  // null where the model has none
    sizes(values != nullptr ? count : -1);
    if (values != nullptr) hash_.add(values, static_cast<size_t>(count) * sizeof(float));
  }

  void matrix(const void* data, int64_t n, int64_t k, bool is_int8) {
    sizes(n, k, is_int8);
    const uint8_t* bytes = static_cast<const uint8_t*>(data);
    const int64_t size = n * k * static_cast<int64_t>(is_int8 ? 1 : sizeof(float));
    if (size <= kSamples * kSampleBytes) {
      hash_.add(bytes, static_cast<size_t>(size));
      return;
    }
    for (int64_t i = 0; i < kSamples; ++i) {
      hash_.add(bytes + (size - kSampleBytes) * i / (kSamples - 1), kSampleBytes);
    }
  }

  void step(const EmbeddingStep& s) {
    matrix(s.table, s.n, s.k, s.scale != nullptr);
    floats(s.scale, s.n);
  }

  void step(const RmsNormStep& s) {
    floats(s.weight, s.k);
    number(s.eps);
  }

  void step(const LinearStep& s) {
    sizes(static_cast<int64_t>(s.weights.size()));
    for (const Weight& w : s.weights) {
      matrix(w.data, w.n, w.k, w.is_int8);
      floats(w.scale, w.n);
      floats(w.bias, w.n);
    }
  }

  void step(const RopeStep& s) { sizes(s.heads, s.dim); }

  void step(const AttentionStep& s) {
    sizes(s.layer, s.n_heads, s.n_kv_heads, s.head_dim);
    number(s.scale);
  }

  void step(const SiluMulStep& s) { sizes(s.width); }
  void step(const AddStep& s) { sizes(s.width); }

  uint64_t value() const { return hash_.value(); }

 private:
  Xxh64 hash_;
};

}  // namespace

uint64_t fingerprint(const Plan& plan) {
  PlanHash hash;
  hash.sizes(plan.n_vocab);
  hash.floats(plan.inv_freq.data(), static_cast<int64_t>(plan.inv_freq.size()));
  for (const Step& step : plan.steps) {
    hash.sizes(static_cast<int64_t>(step.op.index()));
    std::visit([&hash](const auto& op) { hash.step(op); }, step.op);
  }
  return hash.value();
}

}  // namespace edge_kit
