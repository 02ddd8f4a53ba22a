// The decoder's program made in memory, op by op as the exporter's file has it, for tests to plan and to
// spoil.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "io/nb_file.h"

namespace edge_kit {

struct DecoderShape {
  bool int8 = true;
  bool bias = true;  // Qwen2 has one on q, k, v; Llama has none
  int64_t layers = 2, hidden = 64, heads = 4, kv_heads = 2, dim = 16, ffn = 96, vocab = 160;
};

inline DecoderShape llama() {
  DecoderShape s;
  s.bias = false;
  return s;
}
inline DecoderShape fp32(bool bias) {
  DecoderShape s;
  s.int8 = false;
  s.bias = bias;
  return s;
}
inline DecoderShape one_layer() {
  DecoderShape s;
  s.layers = 1;
  return s;
}
inline DecoderShape indivisible() {  // no weight divides into tiles
  DecoderShape s;
  s.hidden = 30, s.ffn = 50, s.vocab = 77, s.heads = 5, s.kv_heads = 1, s.dim = 6;
  return s;
}

class FakeFile : public NbFile {
 public:
  const std::string& path() const override { return path_; }
  const std::string& opt_version() const override { return opt; }
  const std::vector<Op>& ops() const override { return op_list; }
  const std::vector<Tensor>& tensors() const override { return tensor_list; }
  const Tensor* find(const std::string& name) const override {
    for (const Tensor& tensor : tensor_list) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }
  bool variable(const std::string& name, DataType* type, std::vector<int64_t>* shape) const override {
    const auto found = variables.find(name);
    if (found == variables.end()) return false;
    *type = found->second.first;
    *shape = found->second.second;
    return true;
  }
  const uint8_t* data() const override { return nullptr; }
  size_t size() const override { return 0; }

  Tensor& tensor(const std::string& name) { return const_cast<Tensor&>(*find(name)); }

  std::string opt = "v2.13-rc";
  std::vector<Op> op_list;
  std::vector<Tensor> tensor_list;
  std::map<std::string, std::pair<DataType, std::vector<int64_t>>> variables;

 private:
  std::string path_ = "fake.nb";
};

inline Attribute flag(bool value) {
  Attribute a;
  a.kind = Attribute::Kind::kBool;
  a.i = value;
  return a;
}
inline Attribute integer(int64_t value) {
  Attribute a;
  a.kind = Attribute::Kind::kInt;
  a.i = value;
  return a;
}
inline Attribute number(float value) {
  Attribute a;
  a.kind = Attribute::Kind::kFloat;
  a.f = value;
  return a;
}
inline Attribute ints(std::vector<int64_t> value) {
  Attribute a;
  a.kind = Attribute::Kind::kInts;
  a.ints = std::move(value);
  return a;
}
inline Attribute text(std::string value) {
  Attribute a;
  a.kind = Attribute::Kind::kString;
  a.s = std::move(value);
  return a;
}

class DecoderProgram {
 public:
  explicit DecoderProgram(const DecoderShape& shape) : s(shape) {
    feeds();
    std::string x = embedding();
    rotary_table();
    std::vector<std::string> present;
    for (int64_t i = 0; i < s.layers; ++i) x = layer(i, x, &present);
    present.insert(present.begin(), linear("lm_head", rms_norm("norm", x), s.hidden, s.vocab, false));
    for (size_t i = 0; i < present.size(); ++i) {
      file.op_list.push_back(
          {"fetch", {{"X", {present[i]}}}, {{"Out", {"fetch"}}}, {{"col", integer(int64_t(i))}}});
    }
  }

  FakeFile file;

 private:
  using Attributes = std::map<std::string, Attribute>;
  using Inputs = std::map<std::string, std::vector<std::string>>;

  void feed(const std::string& name, int64_t column, DataType type, std::vector<int64_t> shape) {
    file.op_list.push_back({"feed", {{"X", {"feed"}}}, {{"Out", {name}}}, {{"col", integer(column)}}});
    file.variables[name] = {type, std::move(shape)};
  }

  void feeds() {
    for (int64_t i = s.layers; i-- > 0;) {
      const std::string n = std::to_string(i);
      feed("past_value_" + n, 4 + 2 * i, DataType::kFloat32, {s.kv_heads, -1, s.dim});
      feed("past_key_" + n, 3 + 2 * i, DataType::kFloat32, {s.kv_heads, -1, s.dim});
    }
    feed("attention_mask", 2, DataType::kFloat32, {-1, -1});
    feed("positions", 1, DataType::kInt64, {-1});
    feed("input_ids", 0, DataType::kInt64, {-1});
  }

  std::string op(const std::string& type, Inputs inputs, Attributes attributes) {
    const std::string out = type + "_" + std::to_string(file.op_list.size()) + ".tmp_0";
    attributes["__@kernel_type_attr@__"] = text(type + "/def/2/1/1");
    attributes["use_mkldnn"] = flag(false);
    attributes["mkldnn_data_type"] = text("float32");
    Op made{type, std::move(inputs), {{"Out", {out}}}, std::move(attributes)};
    if (type == "reshape2") made.inputs["Shape"] = made.inputs["ShapeTensor"] = {};
    if (type == "reshape2" || type == "transpose2") made.outputs["XShape"] = {out + ".xshape"};
    file.op_list.push_back(std::move(made));
    return out;
  }

  std::string tensor(const std::string& name, DataType type, std::vector<int64_t> shape) {
    size_t bytes = element_size(type);
    for (int64_t size : shape) bytes *= static_cast<size_t>(size);
    memory_.emplace_back(bytes);
    file.tensor_list.push_back({name, type, std::move(shape), memory_.back().data(), bytes});
    return name;
  }

  std::string elementwise(const char* type, const std::string& x, const std::string& y) {
    return op(
        type, {{"X", {x}}, {"Y", {y}}},
        {{"axis", integer(-1)}, {"Scale_x", number(1)}, {"Scale_y", number(1)}, {"Scale_out", number(1)}});
  }
  std::string mul(const std::string& x, const std::string& y) { return elementwise("elementwise_mul", x, y); }
  std::string add(const std::string& x, const std::string& y) { return elementwise("elementwise_add", x, y); }
  std::string cast(const std::string& x, int64_t from) {
    return op("cast", {{"X", {x}}}, {{"in_dtype", integer(from)}, {"out_dtype", integer(5)}});
  }
  std::string reshape(const std::string& x, std::vector<int64_t> shape) {
    return op("reshape2", {{"X", {x}}}, {{"shape", ints(std::move(shape))}, {"inplace", flag(true)}});
  }
  std::string transpose(const std::string& x, std::vector<int64_t> axis) {
    return op("transpose2", {{"X", {x}}},
              {{"axis", ints(std::move(axis))}, {"data_format", text("AnyLayout")}});
  }
  std::string matmul(const std::string& x, const std::string& y, bool trans_y) {
    return op("matmul_v2", {{"X", {x}}, {"Y", {y}}}, {{"trans_x", flag(false)}, {"trans_y", flag(trans_y)}});
  }
  std::string scale(const std::string& x, float factor, float bias) {
    return op("scale", {{"X", {x}}},
              {{"scale", number(factor)}, {"bias", number(bias)}, {"bias_after_scale", flag(true)}});
  }
  std::string concat(const std::string& a, const std::string& b, int64_t axis) {
    return op("concat", {{"X", {a, b}}, {"AxisTensor", {}}}, {{"axis", integer(axis)}});
  }
  std::string slice(const std::string& x, int64_t begin, int64_t end) {
    return op("slice", {{"Input", {x}}},
              {{"axes", ints({2})},
               {"starts", ints({begin})},
               {"ends", ints({end})},
               {"decrease_axis", ints({})},
               {"infer_flags", ints({1})}});
  }
  std::string gather(const std::string& table) {
    return op("gather", {{"X", {table}}, {"Index", {"input_ids"}}, {"Axis", {}}}, {{"axis", integer(0)}});
  }

  std::string embedding() {
    const DataType type = s.int8 ? DataType::kInt8 : DataType::kFloat32;
    const std::string x = gather(tensor("embed_tokens.weight", type, {s.vocab, s.hidden}));
    if (!s.int8) return x;
    const std::string wide = cast(x, 21);
    return mul(wide, gather(tensor("embed_tokens.scale", DataType::kFloat32, {s.vocab, 1})));
  }

  void rotary_table() {
    std::string x = reshape(cast("positions", 3), {-1, 1});
    x = matmul(x, tensor("rotary.inv_freq", DataType::kFloat32, {1, s.dim / 2}), false);
    x = concat(x, x, -1);
    cos_ = op("cos", {{"X", {x}}}, {});
    sin_ = op("sin", {{"X", {x}}}, {});
  }

  std::string rms_norm(const std::string& name, const std::string& x) {
    const std::string mean = op("reduce_mean", {{"X", {mul(x, x)}}},
                                {{"dim", ints({-1})},
                                 {"keep_dim", flag(true)},
                                 {"reduce_all", flag(false)},
                                 {"in_dtype", integer(-1)},
                                 {"out_dtype", integer(-1)}});
    const std::string inverse = op("rsqrt", {{"X", {scale(mean, 1, 1e-6f)}}}, {});
    return mul(mul(x, inverse), tensor(name + ".weight", DataType::kFloat32, {s.hidden}));
  }

  std::string linear(const std::string& name, const std::string& x, int64_t k, int64_t n, bool bias) {
    std::string w;
    const bool tiled = s.int8 && n % 16 == 0 && k % 4 == 0;
    if (tiled) {
      w = cast(tensor(name + ".weight", DataType::kInt8, {n / 16, k / 4, 16, 4}), 21);
      w = reshape(transpose(w, {0, 2, 1, 3}), {n, k});
    } else if (s.int8) {
      w = cast(tensor(name + ".weight", DataType::kInt8, {n, k}), 21);
    } else {
      w = tensor(name + ".weight", DataType::kFloat32, {n, k});
    }
    std::string y = matmul(x, w, true);
    if (s.int8) y = mul(y, tensor(name + ".scale", DataType::kFloat32, {n}));
    return bias ? add(y, tensor(name + ".bias", DataType::kFloat32, {n})) : y;
  }

  std::string heads(const std::string& x, int64_t n) {
    return transpose(reshape(x, {-1, n, s.dim}), {1, 0, 2});
  }

  std::string rotate(const std::string& x) {
    const std::string first = slice(x, 0, s.dim / 2), second = slice(x, s.dim / 2, s.dim);
    const std::string straight = mul(x, cos_);
    return add(straight, mul(concat(scale(second, -1, 0), first, -1), sin_));
  }

  std::string layer(int64_t i, const std::string& x, std::vector<std::string>* present) {
    const std::string name = "layers." + std::to_string(i), n = std::to_string(i);
    const std::string h = rms_norm(name + ".input_layernorm", x);
    const int64_t q_size = s.heads * s.dim, kv_size = s.kv_heads * s.dim;
    const std::string q = rotate(heads(linear(name + ".q_proj", h, s.hidden, q_size, s.bias), s.heads));
    const std::string k = rotate(heads(linear(name + ".k_proj", h, s.hidden, kv_size, s.bias), s.kv_heads));
    const std::string v = heads(linear(name + ".v_proj", h, s.hidden, kv_size, s.bias), s.kv_heads);
    const std::string keys = concat("past_key_" + n, k, 1), values = concat("past_value_" + n, v, 1);
    std::string y = scale(matmul(reshape(q, {s.kv_heads, -1, s.dim}), keys, true), 0.25f, 0);
    y = add(reshape(y, {s.heads, -1, 0}), "attention_mask");
    y = reshape(op("softmax", {{"X", {y}}}, {{"axis", integer(-1)}}), {s.kv_heads, -1, 0});
    y = transpose(reshape(matmul(y, values, false), {s.heads, -1, s.dim}), {1, 0, 2});
    const std::string attended = linear(name + ".o_proj", reshape(y, {-1, q_size}), q_size, s.hidden, false);
    const std::string sum = add(x, attended);
    present->push_back(keys), present->push_back(values);

    const std::string h2 = rms_norm(name + ".post_attention_layernorm", sum);
    const std::string gate =
        op("silu", {{"X", {linear(name + ".gate_proj", h2, s.hidden, s.ffn, false)}}}, {});
    const std::string product = mul(gate, linear(name + ".up_proj", h2, s.hidden, s.ffn, false));
    return add(sum, linear(name + ".down_proj", product, s.ffn, s.hidden, false));
  }

  DecoderShape s;
  std::string cos_, sin_;
  std::deque<std::vector<uint8_t>> memory_;
};

// Renames variables as opt's memory reuse does: a name is given again once its value is dead, a reshape's
// output takes its input's name, by-products (XShape) take any free one. Inputs, outputs and tensors keep
// theirs.
inline void reuse_names(FakeFile* file) {
  std::set<std::string> kept = {"feed", "fetch"};
  std::map<std::string, size_t> last_use;
  for (const Tensor& tensor : file->tensor_list) kept.insert(tensor.name);
  for (size_t i = 0; i < file->op_list.size(); ++i) {
    const Op& op = file->op_list[i];
    for (const auto& input : op.inputs) {
      for (const std::string& name : input.second) {
        last_use[name] = i;
        if (op.type == "fetch") kept.insert(name);
      }
    }
    if (op.type == "feed") kept.insert(op.outputs.at("Out")[0]);
  }
  std::map<std::string, std::string> renamed;
  std::vector<std::string> free;
  int made = 0;
  const auto take = [&] {
    if (free.empty()) return "shared_" + std::to_string(made++);
    const std::string name = free.back();
    free.pop_back();
    return name;
  };
  for (size_t i = 0; i < file->op_list.size(); ++i) {
    Op& op = file->op_list[i];
    std::set<std::string> dying;
    for (auto& input : op.inputs) {
      for (std::string& name : input.second) {
        if (kept.count(name) > 0) continue;
        if (last_use[name] == i) dying.insert(renamed.at(name));
        name = renamed.at(name);
      }
    }
    std::string& out = op.outputs["Out"][0];
    if (kept.count(out) == 0) {
      const bool in_place = op.type == "reshape2" && !dying.empty();
      const std::string name = in_place ? *dying.begin() : take();
      dying.erase(name);
      out = renamed[out] = name;
    }
    if (op.outputs.count("XShape") > 0) {
      op.outputs["XShape"] = {take()};
      free.push_back(op.outputs["XShape"][0]);
    }
    free.insert(free.end(), dying.begin(), dying.end());
  }
}

}  // namespace edge_kit
