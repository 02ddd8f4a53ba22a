// What the planner makes of the decoder's programs.
#include "plan/plan.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "test.h"
#include "decoder_program.h"

using namespace edge_kit;

namespace {

// Runs a plan on names in place of numbers: every buffer holds the name of the value written last. A step
// that does not find what it has to read shows a buffer that was given away too early.
class NameMachine {
 public:
  NameMachine(const Plan& plan, const DecoderShape& shape)
      : plan_(plan), s_(shape), held_(plan.buffer_widths.size()) {}

  void run() {
    const auto embedding = step<EmbeddingStep>();
    REQUIRE_EQ(embedding.n, s_.vocab);
    write(embedding.output, "x", s_.hidden);
    for (int i = 0; i < s_.layers; ++i) {
      norm("x", "h");
      linears("h", {{"q", s_.heads * s_.dim}, {"k", s_.kv_heads * s_.dim}, {"v", s_.kv_heads * s_.dim}},
              s_.bias);
      rope("q", s_.heads);
      rope("k", s_.kv_heads);
      attention(i);
      linears("context", {{"attended", s_.hidden}}, false);
      add("x", "attended", "x2");
      norm("x2", "h2");
      linears("h2", {{"gate", s_.ffn}, {"up", s_.ffn}}, false);
      const auto silu = step<SiluMulStep>();
      read(silu.gate, "gate"), read(silu.up, "up");
      REQUIRE_EQ(silu.width, s_.ffn);
      write(silu.output, "product", s_.ffn);
      linears("product", {{"ffn", s_.hidden}}, false);
      add("x2", "ffn", "x");
    }
    norm("x", "last");
    linears("last", {{"logits", s_.vocab}}, false);
    REQUIRE_EQ(next_, plan_.steps.size());
    read(plan_.logits, "logits");
    REQUIRE_EQ(plan_.buffer_widths[size_t(plan_.logits)], s_.vocab);
  }

 private:
  template <typename T>
  T step() {
    REQUIRE(next_ < plan_.steps.size());
    const Step& step = plan_.steps[next_++];
    if (!std::holds_alternative<T>(step.op)) {
      edge_kit_test::require(false, __FILE__, __LINE__,
                             "step " + std::to_string(next_ - 1) + " (" + step.name + ") is of another kind");
    }
    return std::get<T>(step.op);
  }
  void read(int buffer, const std::string& name) {
    REQUIRE(buffer >= 0 && size_t(buffer) < held_.size());
    REQUIRE_EQ(held_[size_t(buffer)], name);
  }
  void write(int buffer, const std::string& name, int64_t width) {
    REQUIRE(buffer >= 0 && size_t(buffer) < held_.size());
    REQUIRE(plan_.buffer_widths[size_t(buffer)] >= width);
    held_[size_t(buffer)] = name;
  }
  void norm(const char* x, const char* y) {
    const auto norm = step<RmsNormStep>();
    read(norm.input, x);
    REQUIRE(norm.output != norm.input);
    REQUIRE(norm.eps == 1e-6f);
    REQUIRE(norm.weight != nullptr && norm.k == s_.hidden);
    write(norm.output, y, norm.k);
  }
  void linears(const char* x, const std::vector<std::pair<std::string, int64_t>>& outputs, bool bias) {
    const auto group = step<LinearStep>();
    read(group.input, x);
    REQUIRE_EQ(group.weights.size(), outputs.size());
    REQUIRE_EQ(group.outputs.size(), outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Weight& w = group.weights[i];
      REQUIRE_EQ(w.n, outputs[i].second);
      REQUIRE_EQ(w.is_int8, s_.int8);
      REQUIRE_EQ(w.scale != nullptr, s_.int8);
      REQUIRE_EQ(w.bias != nullptr, bias);
      const bool tiles = s_.int8 && w.n % kTileN == 0 && w.k % kTileK == 0;
      REQUIRE(w.layout == (tiles ? WeightLayout::kTiles : WeightLayout::kRows));
      REQUIRE(group.outputs[i] != group.input);
      for (size_t j = 0; j < i; ++j) REQUIRE(group.outputs[i] != group.outputs[j]);
      write(group.outputs[i], outputs[i].first, w.n);
    }
    read(group.input, x);
  }
  void rope(const std::string& name, int64_t heads) {
    const auto rope = step<RopeStep>();
    read(rope.value, name);
    REQUIRE_EQ(rope.heads, heads);
    REQUIRE_EQ(rope.dim, s_.dim);
    write(rope.value, name + " rotated", heads * s_.dim);
  }
  void attention(int layer) {
    const auto a = step<AttentionStep>();
    REQUIRE_EQ(a.layer, layer);
    REQUIRE(a.n_heads == s_.heads && a.n_kv_heads == s_.kv_heads && a.head_dim == s_.dim);
    REQUIRE(a.scale == 0.25f);
    REQUIRE(a.output != a.q && a.output != a.k && a.output != a.v);
    read(a.q, "q rotated"), read(a.k, "k rotated"), read(a.v, "v");
    write(a.output, "context", s_.heads * s_.dim);
  }
  void add(const char* a, const char* b, const char* sum) {
    const auto add = step<AddStep>();
    read(add.a, a), read(add.b, b);
    REQUIRE_EQ(add.width, s_.hidden);
    write(add.output, sum, add.width);
  }

  const Plan& plan_;
  const DecoderShape& s_;
  std::vector<std::string> held_;
  size_t next_ = 0;
};

void check_plan(const DecoderShape& shape, bool reuse) {
  DecoderProgram program(shape);
  if (reuse) reuse_names(&program.file);
  const Plan plan = make_plan(program.file);
  NameMachine(plan, shape).run();
  REQUIRE_EQ(plan.n_vocab, shape.vocab);
  REQUIRE_EQ(plan.n_layers, shape.layers);
  REQUIRE_EQ(plan.hidden_size, shape.hidden);
  REQUIRE_EQ(plan.n_heads, shape.heads);
  REQUIRE_EQ(plan.n_kv_heads, shape.kv_heads);
  REQUIRE_EQ(plan.head_dim, shape.dim);
  REQUIRE_EQ(plan.inv_freq.size(), size_t(shape.dim / 2));
  REQUIRE(plan.buffer_widths.size() <= 7);  // x, h, q, k, v, context and the logits
  // 12 steps a layer after the embedding; the last attention is the fifth of its layer.
  REQUIRE_EQ(plan.first_row_local_step, size_t(1 + 12 * (shape.layers - 1) + 5));
  int64_t bytes = shape.hidden * (shape.int8 ? 1 : 4) + (shape.int8 ? 4 : 0);
  for (const Tensor& tensor : program.file.tensors()) {
    if (tensor.name.find("embed") != 0 && tensor.name.find("rotary") != 0) bytes += int64_t(tensor.bytes);
  }
  REQUIRE_EQ(plan.parameter_bytes_per_token, bytes);
}

TEST(plans_qwen2_int8) { check_plan({}, false); }
TEST(plans_qwen2_int8_with_reused_names) { check_plan({}, true); }
TEST(plans_llama_int8) { check_plan(llama(), false); }
TEST(plans_llama_int8_with_reused_names) { check_plan(llama(), true); }
TEST(plans_qwen2_fp32) { check_plan(fp32(true), false); }
TEST(plans_llama_fp32_with_reused_names) { check_plan(fp32(false), true); }
TEST(plans_int8_rows_where_tiles_do_not_divide) { check_plan(indivisible(), true); }
TEST(plans_one_layer) { check_plan(one_layer(), true); }

TEST(reused_names_stand_for_several_values) {
  DecoderProgram program({});
  reuse_names(&program.file);
  std::map<std::string, int> times;
  for (const Op& op : program.file.ops()) ++times[op.outputs.at("Out")[0]];
  REQUIRE(std::any_of(times.begin(), times.end(),
                    [](const auto& t) { return t.first != "fetch" && t.second > 10; }));
}

}  // namespace

int main() { return edge_kit_test::run_tests(); }
