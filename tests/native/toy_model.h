// A small decoder with random weights and a plan made by hand, for tests of what runs plans.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/model.h"

namespace edge_kit_test {

using namespace edge_kit;

struct ToyShape {
  int64_t n_vocab = 203;  // not a multiple of the tile: rows layout
  int64_t hidden = 96;    // 4 query heads, 2 key/value heads of 24
  int64_t ffn = 160;
  int64_t n_layers = 2;
  int64_t n_heads = 4, n_kv_heads = 2, head_dim = 24;
};

class ToyModel {
 public:
  explicit ToyModel(const ToyShape& shape = ToyShape()) : shape_(shape) { build(); }

  const ToyShape& shape() const { return shape_; }

  // The weights live in this object, which must outlive the model.
  std::unique_ptr<Model> open(const ModelOptions& options) const {
    return std::make_unique<Model>(nullptr, plan_, options);
  }
  const Plan& plan() const { return plan_; }

 private:
  enum Buffers { kHidden, kNorm, kQ, kK, kV, kAttention, kProjected, kGate, kUp, kLogits };

  float random() {  // in [-1, 1)
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<int32_t>(state_ >> 32)) * 0x1p-31f;
  }

  const float* floats(int64_t count, float base, float spread) {
    floats_.emplace_back(static_cast<size_t>(count));
    for (float& value : floats_.back()) value = base + spread * random();
    return floats_.back().data();
  }

  const int8_t* bytes(int64_t count) {
    bytes_.emplace_back(static_cast<size_t>(count));
    for (int8_t& value : bytes_.back()) value = static_cast<int8_t>(std::lround(127.0f * random()));
    return bytes_.back().data();
  }

  Weight weight(int64_t n, int64_t k, bool bias) {
    const float scale = 2.5f / (127.0f * std::sqrt(static_cast<float>(k)));
    const WeightLayout layout =
        n % kTileN == 0 && k % kTileK == 0 ? WeightLayout::kTiles : WeightLayout::kRows;
    return {
        bytes(n * k), floats(n, scale, 0.3f * scale), bias ? floats(n, 0.0f, 0.5f) : nullptr, n, k, layout,
        true};
  }

  void add(const std::string& name, decltype(Step::op) op) { plan_.steps.push_back({name, std::move(op)}); }

  void linear(int input, std::vector<Weight> weights, std::vector<int> outputs) {
    add("linear",
        LinearStep{input, std::move(weights), std::vector<std::string>(outputs.size(), "weight"), outputs});
  }

  void norm() {
    add("norm", RmsNormStep{floats(shape_.hidden, 1.0f, 0.1f), 1e-6f, shape_.hidden, kHidden, kNorm});
  }

  void build() {
    const ToyShape& s = shape_;
    const int64_t q = s.n_heads * s.head_dim, kv = s.n_kv_heads * s.head_dim;
    plan_.buffer_widths = {s.hidden, s.hidden, q, kv, kv, q, s.hidden, s.ffn, s.ffn, s.n_vocab};
    for (int64_t i = 0; i < s.head_dim / 2; ++i) {
      plan_.inv_freq.push_back(
          std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(s.head_dim)));
    }
    add("embedding", EmbeddingStep{bytes(s.n_vocab * s.hidden), floats(s.n_vocab, 0.01f, 0.002f), s.n_vocab,
                                   s.hidden, kHidden});
    for (int64_t layer = 0; layer < s.n_layers; ++layer) {
      norm();
      linear(kNorm, {weight(q, s.hidden, true), weight(kv, s.hidden, true), weight(kv, s.hidden, true)},
             {kQ, kK, kV});
      add("rope q", RopeStep{kQ, s.n_heads, s.head_dim});
      add("rope k", RopeStep{kK, s.n_kv_heads, s.head_dim});
      add("attention", AttentionStep{static_cast<int>(layer), kQ, kK, kV, kAttention, s.n_heads, s.n_kv_heads,
                                     s.head_dim, 1.0f / std::sqrt(static_cast<float>(s.head_dim))});
      plan_.first_row_local_step = plan_.steps.size();
      linear(kAttention, {weight(s.hidden, q, false)}, {kProjected});
      add("add", AddStep{kHidden, kProjected, kHidden, s.hidden});
      norm();
      linear(kNorm, {weight(s.ffn, s.hidden, false), weight(s.ffn, s.hidden, false)}, {kGate, kUp});
      add("silu", SiluMulStep{kGate, kUp, kGate, s.ffn});
      linear(kGate, {weight(s.hidden, s.ffn, false)}, {kProjected});
      add("add", AddStep{kHidden, kProjected, kHidden, s.hidden});
    }
    norm();
    linear(kNorm, {weight(s.n_vocab, s.hidden, false)}, {kLogits});
    plan_.logits = kLogits;
    plan_.n_vocab = s.n_vocab;
    plan_.n_layers = s.n_layers;
    plan_.hidden_size = s.hidden;
    plan_.n_heads = s.n_heads;
    plan_.n_kv_heads = s.n_kv_heads;
    plan_.head_dim = s.head_dim;
  }

  const ToyShape shape_;
  uint64_t state_ = 42;
  std::vector<std::vector<float>> floats_;
  std::vector<std::vector<int8_t>> bytes_;
  Plan plan_;
};

}  // namespace edge_kit_test
