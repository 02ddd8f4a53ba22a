// What differs from the decoder's programs is refused, with a message that names the op.
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "test.h"
#include "decoder_program.h"
#include "plan/plan.h"

using namespace edge_kit;

namespace {

using Change = std::function<void(FakeFile&)>;

// The message of the refusal, "" if the program is planned.
std::string refusal(const DecoderShape& shape, bool reuse, const Change& change) {
  DecoderProgram program(shape);
  if (reuse) reuse_names(&program.file);
  change(program.file);
  try {
    make_plan(program.file);
  } catch (const Error& error) {
    REQUIRE(error.status() == EK_ERR_NOT_SUPPORTED || error.status() == EK_ERR_FORMAT);
    return error.what();
  }
  return "";
}

Op& nth(FakeFile& file, const std::string& type, size_t n) {
  for (Op& op : file.op_list) {
    if (op.type == type && n-- == 0) return op;
  }
  throw std::runtime_error("no such op: " + type);
}

Change set(const char* type, size_t n, const char* name, Attribute value) {
  return [=](FakeFile& file) { nth(file, type, n).attributes[name] = value; };
}
Change reads(const char* type, size_t n, const char* parameter, std::vector<std::string> names) {
  return [=](FakeFile& file) { nth(file, type, n).inputs[parameter] = names; };
}
Change becomes(const char* type, size_t n, const char* other) {
  return [=](FakeFile& file) { nth(file, type, n).type = other; };
}
Change shaped(const char* tensor, DataType type, std::vector<int64_t> shape) {
  return [=](FakeFile& file) {
    Tensor& t = file.tensor(tensor);
    t.type = type, t.shape = shape;
    t.bytes = element_size(type);
    for (int64_t size : shape) t.bytes *= size_t(size);
  };
}

struct Case {
  const char* what;
  Change change;
  const char* op;       // as the message names it
  const char* problem;  // and what it says of it
};

// Counted from the program's start. scale: 0 is of a norm, 1 and 2 rotate q and k, 3 is of the scores.
// reshape2: 0 is of the positions, 1 of q's weight, 2 of q, 7 folds q, 8 and 9 are of the scores, 10 and 11
// of the context.
const std::vector<Case>& cases() {
  static const std::vector<Case> list = {
      {"the embedding's axis", set("gather", 0, "axis", integer(1)), "(gather)", "axis is 1; expected 0"},
      {"scales gathered by something else", reads("gather", 1, "Index", {"attention_mask"}), "(gather)",
       "Index"},
      {"table cast from uint8", set("cast", 0, "in_dtype", integer(20)), "(cast)",
       "in_dtype is 20; expected 21"},
      {"a cast to fp16", set("cast", 0, "out_dtype", integer(4)), "(cast)", "out_dtype is 4; expected 5"},
      {"positions cast from int32", set("cast", 1, "in_dtype", integer(2)), "(cast)",
       "in_dtype is 2; expected 3"},
      {"positions as a row", set("reshape2", 0, "shape", ints({1, -1})), "(reshape2)",
       "[1, -1]; expected [-1, 1]"},
      {"the angles' product", set("matmul_v2", 0, "trans_y", flag(true)), "(matmul_v2)", "trans_y"},
      {"angles joined along rows", set("concat", 0, "axis", integer(0)), "(concat)",
       "axis is 0; expected -1"},
      {"tan for sin", becomes("sin", 0, "tan"), "(concat)", "one of them a sin"},
      {"norm over rows", set("reduce_mean", 0, "dim", ints({0})), "(reduce_mean)",
       "dim is [0]; expected [-1]"},
      {"norm over everything", set("reduce_mean", 0, "reduce_all", flag(true)), "(reduce_mean)",
       "reduce_all"},
      {"norm without the kept dim", set("reduce_mean", 0, "keep_dim", flag(false)), "(reduce_mean)",
       "keep_dim"},
      {"mean turned sum", becomes("reduce_mean", 0, "reduce_sum"), "(reduce_sum)", "expected reduce_mean"},
      {"a doubled mean", set("scale", 0, "scale", number(2)), "(scale)", "scale is 2"},
      {"a negative epsilon", set("scale", 0, "bias", number(-1)), "(scale)", "epsilon"},
      {"an infinite epsilon", set("scale", 0, "bias", number(INFINITY)), "(scale)", "finite"},
      {"sqrt for rsqrt", becomes("rsqrt", 0, "sqrt"), "(sqrt)", "expected rsqrt"},
      {"tiles untransposed", set("transpose2", 0, "axis", ints({0, 1, 2, 3})), "(transpose2)",
       "[0, 2, 1, 3]"},
      {"a weight's shape", set("reshape2", 1, "shape", ints({32, 128})), "(reshape2)", "expected [64, 64]"},
      {"a weight untransposed", set("matmul_v2", 1, "trans_y", flag(false)), "(matmul_v2)",
       "trans_y is false"},
      {"x transposed", set("matmul_v2", 1, "trans_x", flag(true)), "(matmul_v2)", "trans_x is true"},
      {"a scale that is computed", reads("elementwise_mul", 4, "Y", {"attention_mask"}), "(elementwise_mul)",
       "computed"},
      {"k's scale at q", reads("elementwise_mul", 4, "Y", {"layers.0.k_proj.scale"}), "(elementwise_mul)",
       "[64]"},
      {"a broadcast from the left", set("elementwise_mul", 4, "axis", integer(0)), "(elementwise_mul)",
       "axis is 0"},
      {"a hidden factor", set("elementwise_mul", 4, "Scale_x", number(2)), "(elementwise_mul)",
       "Scale_x is 2"},
      {"a fused activation", set("elementwise_add", 0, "act_type", text("relu")), "(elementwise_add)",
       "act_type"},
      {"a fused relu", set("matmul_v2", 1, "fuse_relu", flag(true)), "(matmul_v2)", "fuse_relu"},
      {"heads and size swapped", set("reshape2", 2, "shape", ints({-1, 16, 4})), "(reshape2)", "table's 16"},
      {"heads of another width", set("reshape2", 2, "shape", ints({-1, 4, 8})), "(reshape2)",
       "heads * size = 64"},
      {"a negative head count", set("reshape2", 2, "shape", ints({-1, -4, -16})), "(reshape2)",
       "heads * size = 64"},
      {"a shape from elsewhere", reads("reshape2", 2, "ShapeTensor", {"attention_mask"}), "(reshape2)",
       "ShapeTensor"},
      {"heads untransposed", set("transpose2", 1, "axis", ints({0, 1, 2})), "(transpose2)",
       "expected [1, 0, 2]"},
      {"a slice's axis", set("slice", 0, "axes", ints({1})), "(slice)", "axes is [1]; expected [2]"},
      {"a slice too short", set("slice", 0, "ends", ints({7})), "(slice)", "ends is [7]; expected [8]"},
      {"a slice too late", set("slice", 1, "starts", ints({9})), "(slice)", "starts is [9]; expected [8]"},
      {"a dim dropped", set("slice", 1, "decrease_axis", ints({2})), "(slice)", "decrease_axis"},
      {"rotated the other way", set("scale", 1, "scale", number(1)), "(scale)", "expected -1"},
      {"rotated with an offset", set("scale", 1, "bias", number(1)), "(scale)", "bias is 1"},
      {"cos for sin",
       [](FakeFile& f) { nth(f, "elementwise_mul", 6).inputs["Y"] = nth(f, "cos", 0).outputs["Out"]; },
       "(elementwise_mul)", "input Y"},
      {"past values for keys", [](FakeFile& f) { nth(f, "concat", 3).inputs["X"][0] = "past_value_0"; },
       "(concat)", "past_key_0"},
      {"the keys of layer 1", [](FakeFile& f) { nth(f, "concat", 3).inputs["X"][0] = "past_key_1"; },
       "(concat)", "past_key_0"},
      {"the cache along heads", set("concat", 3, "axis", integer(0)), "(concat)", "axis is 0; expected 1"},
      {"queries unfolded", set("reshape2", 7, "shape", ints({4, -1, 16})), "(reshape2)",
       "expected [2, -1, 16]"},
      {"scores offset", set("scale", 3, "bias", number(1)), "(scale)", "bias is 1"},
      {"scores not a number", set("scale", 3, "scale", number(NAN)), "(scale)", "finite"},
      {"the scores' shape", set("reshape2", 8, "shape", ints({2, -1, 0})), "(reshape2)",
       "expected [4, -1, 0]"},
      {"masked by something else", reads("elementwise_add", 5, "Y", {"past_key_0"}), "(elementwise_add)",
       "mask"},
      {"softmax over queries", set("softmax", 0, "axis", integer(1)), "(softmax)", "axis is 1; expected -1"},
      {"sigmoid for softmax", becomes("softmax", 0, "sigmoid"), "(sigmoid)", "expected softmax"},
      {"values transposed", set("matmul_v2", 5, "trans_y", flag(true)), "(matmul_v2)", "trans_y is true"},
      {"the context's shape", set("reshape2", 10, "shape", ints({2, -1, 32})), "(reshape2)",
       "expected [4, -1, 16]"},
      {"the context's rows", set("reshape2", 11, "shape", ints({-1, 32})), "(reshape2)", "expected [-1, 64]"},
      {"gelu for silu", becomes("silu", 0, "gelu"), "(gelu)", "expected the ops of"},
      {"an op unheard of", becomes("elementwise_add", 7, "elementwise_sub"), "(elementwise_sub)",
       "expected the ops of"},
      {"a weight turned float", shaped("layers.0.q_proj.weight", DataType::kFloat32, {4, 16, 16, 4}),
       "(matmul_v2)", "q_proj.weight float32"},
      {"a weight of other tiles", shaped("layers.0.q_proj.weight", DataType::kInt8, {8, 16, 8, 4}),
       "(matmul_v2)", "[N/16, K/4, 16, 4]"},
      {"a weight cut short", [](FakeFile& f) { f.tensor("layers.0.q_proj.weight").bytes -= 1; },
       "(matmul_v2)", "q_proj.weight"},
      {"a bias cut short", shaped("layers.1.v_proj.bias", DataType::kFloat32, {31}), "(elementwise_add)",
       "[31]"},
      {"a scale of int32", shaped("lm_head.scale", DataType::kInt32, {160}), "(elementwise_mul)", "int32"},
      {"embedding scales too few", shaped("embed_tokens.scale", DataType::kFloat32, {159, 1}), "(gather)",
       "[159, 1]"},
      {"an empty norm", shaped("norm.weight", DataType::kFloat32, {0}), "(elementwise_mul)",
       "expected float32 [64]"},
      {"a shorter rotary table", shaped("rotary.inv_freq", DataType::kFloat32, {1, 7}), "(reshape2)",
       "table's 14"},
      {"a huge head", shaped("rotary.inv_freq", DataType::kFloat32, {1, 257}), "(matmul_v2)", "up to 512"},
      {"a tensor overwritten", [](FakeFile& f) { nth(f, "silu", 0).outputs["Out"] = {"norm.weight"}; },
       "(silu)", "overwrites"},
      {"two outputs", [](FakeFile& f) { nth(f, "silu", 0).outputs["Out"].push_back("more"); }, "(silu)",
       "2 values"},
      {"a column twice", set("feed", 0, "col", integer(5)), "(feed)", "column 5"},
      {"a missing tensor", [](FakeFile& f) { f.tensor("lm_head.weight").name = "gone"; }, "(cast)",
       "lm_head.weight"},
  };
  return list;
}

TEST(refuses_each_change_and_names_the_op) {
  std::string wrong;
  for (const Case& c : cases()) {
    const std::string message = refusal({}, false, c.change);
    const std::string op = message.substr(0, message.find(')') + 1);
    if (op.find("fake.nb: op ") != 0 || op.find(c.op) == std::string::npos ||
        message.find(c.problem) == std::string::npos) {
      wrong += std::string("\n    ") + c.what + ": expected " + c.op + " … " + c.problem + ", got '" +
               message + "'";
    }
  }
  REQUIRE_EQ(wrong, "");
  REQUIRE(cases().size() >= 60);
}

// Every attribute of every op, but for those without an effect and the two numbers that are free.
TEST(refuses_any_attribute_changed) {
  const std::set<std::string> noise = {
      "__@kernel_type_attr@__", "use_mkldnn", "mkldnn_data_type", "inplace", "data_format", "infer_flags"};
  const FakeFile plain = DecoderProgram(one_layer()).file;
  int changed = 0;
  for (size_t i = 0; i < plain.ops().size(); ++i) {
    const Op& op = plain.ops()[i];
    for (const auto& entry : op.attributes) {
      const std::string& name = entry.first;
      if (noise.count(name) > 0) continue;
      if (op.type == "scale" && name == "bias" && entry.second.f == 1e-6f) continue;   // epsilon
      if (op.type == "scale" && name == "scale" && entry.second.f == 0.25f) continue;  // of the scores
      const std::string message = refusal(one_layer(), i % 2 == 1, [&](FakeFile& file) {
        Attribute& a = file.op_list[i].attributes[name];
        a.kind == Attribute::Kind::kBool ? a.i = !a.i : ++a.i;
        a.f += 1;
        a.ints.empty() ? a.ints.push_back(1) : static_cast<void>(++a.ints[0]);
      });
      if (message.empty())
        edge_kit_test::require(false, __FILE__, __LINE__,
                               "op " + std::to_string(i) + " (" + op.type + ") " + name);
      ++changed;
    }
  }
  REQUIRE(changed > 200);
}

TEST(refuses_any_op_removed_or_renamed_and_any_activation) {
  const FakeFile plain = DecoderProgram(one_layer()).file;
  for (size_t i = 0; i < plain.ops().size(); ++i) {
    const auto at = [i](FakeFile& file) { return file.op_list.begin() + static_cast<std::ptrdiff_t>(i); };
    const std::vector<Change> changes = {
        [&](FakeFile& file) { file.op_list.erase(at(file)); },
        [&](FakeFile& file) { at(file)->type = "relu"; },
        [&](FakeFile& file) { at(file)->attributes["act_type"] = text("relu"); },
        [&](FakeFile& file) { at(file)->attributes.clear(); },
        [&](FakeFile& file) { at(file)->inputs.clear(); },
        [&](FakeFile& file) { at(file)->outputs.clear(); },
    };
    for (size_t c = 0; c < changes.size(); ++c) {
      const std::string& type = plain.ops()[i].type;
      const bool is_border = type == "feed" || type == "fetch";
      if (is_border && (c == 2 || c == 4 || c == 5))
        continue;  // what these carry besides a column means nothing
      const bool has_attributes = type != "cos" && type != "sin" && type != "rsqrt" && type != "silu";
      if (c == 3 && !has_attributes) continue;
      if (refusal(one_layer(), false, changes[c]).empty()) {
        edge_kit_test::require(false, __FILE__, __LINE__,
                               "change " + std::to_string(c) + " of op " + std::to_string(i));
      }
    }
  }
}

TEST(refuses_any_tensor_of_another_size_or_type) {
  for (DecoderShape shape : {DecoderShape(), fp32(true), indivisible()}) {
    shape.layers = 1;
    const FakeFile plain = DecoderProgram(shape).file;
    for (const Tensor& tensor : plain.tensors()) {
      const std::vector<Change> changes = {
          [&](FakeFile& file) { file.tensor(tensor.name).bytes -= 1; },
          [&](FakeFile& file) { file.tensor(tensor.name).bytes = 0; },
          [&](FakeFile& file) { file.tensor(tensor.name).shape.pop_back(); },
          [&](FakeFile& file) { file.tensor(tensor.name).shape[0] = 0; },
          [&](FakeFile& file) { file.tensor(tensor.name).shape[0] = INT64_MAX; },
          [&](FakeFile& file) { file.tensor(tensor.name).shape.back() = -1; },
          [&](FakeFile& file) { file.tensor(tensor.name).type = DataType::kInt16; },
          [&](FakeFile& file) {
            Tensor& t = file.tensor(tensor.name);
            t.bytes -= t.bytes / size_t(t.shape[0]);
            t.shape[0] -= 1;
          },
      };
      for (const Change& change : changes) REQUIRE(!refusal(shape, false, change).empty());
    }
  }
}

// Whatever an op is made to read, the planner ends with a plan that is within bounds or an error.
TEST(survives_any_input_replaced) {
  const FakeFile plain = DecoderProgram(one_layer()).file;
  for (size_t i = 0; i < plain.ops().size(); ++i) {
    const std::string other = plain.ops()[i / 2].outputs.at("Out")[0];
    for (const std::string& name : {other, std::string("positions"), std::string("lm_head.scale")}) {
      for (const auto& input : plain.ops()[i].inputs) {
        DecoderProgram program(one_layer());
        program.file.op_list[i].inputs[input.first] = {name};
        try {
          const Plan plan = make_plan(program.file);
          REQUIRE(plan.logits >= 0 && size_t(plan.logits) < plan.buffer_widths.size());
        } catch (const Error&) {
        }
      }
    }
  }
}

TEST(ignores_attributes_without_effect) {
  const auto add_noise = [](FakeFile& file) {
    for (Op& op : file.op_list) {
      op.attributes["op_role"] = integer(1);
      op.attributes["use_quantizer"] = flag(false);
      op.attributes["fuse_relu"] = flag(false);
      op.attributes["fused_reshape_X"] = ints({});
      op.attributes["act_type"] = text("");
    }
  };
  REQUIRE_EQ(refusal({}, true, add_noise), "");
}

TEST(refuses_layers_of_different_heads) {
  DecoderShape s;
  s.kv_heads = s.heads;
  const auto change = [](FakeFile& file) {
    for (size_t i = 0; i < file.op_list.size(); ++i) {
      const bool is_layer_1 = i > file.op_list.size() / 2;
      for (auto& entry : file.op_list[i].attributes) {
        std::vector<int64_t>& shape = entry.second.ints;
        if (!is_layer_1 || entry.first != "shape" || shape.size() != 3) continue;
        for (int64_t& size : shape) size = size == 4 ? 8 : size == 16 ? 8 : size;
      }
    }
    for (const char* name : {"past_key_1", "past_value_1"}) file.variables[name].second = {8, -1, 8};
  };
  REQUIRE(refusal(s, false, change).find("head size") != std::string::npos);
}

TEST(refuses_inputs_of_another_type) {
  const auto ids = [](FakeFile& file) { file.variables["input_ids"].first = DataType::kInt32; };
  REQUIRE(refusal({}, false, ids).find("'input_ids' (column 0) is int32 [-1]") != std::string::npos);
  const auto past = [](FakeFile& file) { file.variables["past_key_1"].second = {4, -1, 16}; };
  REQUIRE(refusal({}, false, past).find("expected float32 [2, -1, 16]") != std::string::npos);
}

TEST(refuses_outputs_in_another_order) {
  const auto swap = [](FakeFile& file) {
    std::swap(nth(file, "fetch", 1).inputs, nth(file, "fetch", 2).inputs);
  };
  REQUIRE(refusal({}, false, swap).find("output column 1 is not") != std::string::npos);
  const auto hidden = [](FakeFile& file) { nth(file, "fetch", 0).inputs = nth(file, "fetch", 1).inputs; };
  REQUIRE(refusal({}, false, hidden).find("expected the logits") != std::string::npos);
}

TEST(names_another_opt_version_before_the_op) {
  const auto relu = becomes("silu", 0, "relu");
  REQUIRE(refusal({}, false, relu).find("opt") == std::string::npos);
  const auto older = [&](FakeFile& file) {
    relu(file);
    file.opt = "v2.10";
  };
  REQUIRE(refusal({}, false, older).find("written by opt v2.10, this runtime follows v2.13-rc; op ") !=
          std::string::npos);
}

TEST(refuses_an_empty_program) { REQUIRE_THROWS(make_plan(FakeFile()), Error, "no input in column 1"); }

}  // namespace

int main() { return edge_kit_test::run_tests(); }
