#include "plan/op_check.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace edge_kit {
namespace {

// Attributes that choose an implementation, or that the traced ops carry for other backends and training.
bool is_noise(const std::string& name) {
  static const char* const kNames[] = {"__@kernel_type_attr@__",
                                       "data_format",
                                       "inplace",
                                       "infer_flags",
                                       "is_test",
                                       "mkldnn_data_type",
                                       "op_callstack",
                                       "op_device",
                                       "op_namescope",
                                       "op_role",
                                       "op_role_var",
                                       "use_cudnn",
                                       "use_mkldnn",
                                       "use_quantizer",
                                       "with_quant_attr"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

// An optional feature that is off ("fuse_relu": false, "fused_reshape_X": []).
bool is_off(const Attribute& attribute) {
  switch (attribute.kind) {
    case Attribute::Kind::kBool:
      return attribute.i == 0;
    case Attribute::Kind::kString:
      return attribute.s.empty();
    case Attribute::Kind::kInts:
    case Attribute::Kind::kLongs:
      return attribute.ints.empty();
    case Attribute::Kind::kFloats:
      return attribute.floats.empty();
    case Attribute::Kind::kStrings:
      return attribute.strings.empty();
    default:
      return false;
  }
}

}  // namespace

std::string to_text(const std::vector<int64_t>& list) {
  std::string text = "[";
  for (size_t i = 0; i < list.size() && i < 8; ++i) text += (i > 0 ? ", " : "") + std::to_string(list[i]);
  return text + (list.size() > 8 ? ", ...]" : "]");
}

std::string to_text(const Tensor& tensor) {
  return tensor.name + " " + type_name(tensor.type) + " " + to_text(tensor.shape);
}

bool has_shape(const Tensor& tensor, DataType type, const std::vector<int64_t>& shape) {
  if (tensor.type != type || tensor.shape != shape) return false;
  size_t left = tensor.bytes / element_size(type);  // divided down: a product of hostile sizes could wrap
  for (int64_t size : shape) {
    if (size <= 0 || left % static_cast<size_t>(size) != 0) return false;
    left /= static_cast<size_t>(size);
  }
  return left == 1;
}

OpCheck only_user(Graph& graph, ValueId id, const char* type) {
  const Value& value = graph.value(id);
  const Node& source = graph.nodes()[static_cast<size_t>(value.definition)];
  if (value.users.size() != 1) {
    graph.refuse(source, "its output '" + value.name + "' is read by " + std::to_string(value.users.size()) +
                             " ops; expected one, of type " + type);
  }
  Node& user = graph.nodes()[static_cast<size_t>(value.users[0])];
  if (user.op->type != type) {
    graph.refuse(user, "reads the output of op " + std::to_string(source.index) + " (" + source.op->type +
                           "); expected " + type + " there");
  }
  return OpCheck(graph, &user);
}

void OpCheck::mismatch(const char* name, const std::string& found, const std::string& expected) const {
  refuse(std::string(name) + " is " + found + "; expected " + expected);
}

const Attribute& OpCheck::attribute(const char* name, Attribute::Kind kind) {
  const auto found = node_->op->attributes.find(name);
  if (found == node_->op->attributes.end()) refuse(std::string("has no attribute ") + name);
  if (found->second.kind != kind) refuse(std::string("attribute ") + name + " is not of the type expected");
  checked_.insert(name);
  return found->second;
}

OpCheck& OpCheck::reads(const char* parameter, const std::vector<ValueId>& expected) {
  checked_.insert(parameter);
  const auto found = node_->inputs.find(parameter);
  if (found == node_->inputs.end() || found->second != expected) {
    std::string names;
    for (ValueId id : expected) names += (names.empty() ? "'" : ", '") + graph_.value(id).name + "'";
    refuse(std::string("input ") + parameter + " is another value than expected: " + names);
  }
  return *this;
}

OpCheck& OpCheck::flag(const char* name, bool expected) {
  const bool found = attribute(name, Attribute::Kind::kBool).i != 0;
  if (found != expected) mismatch(name, found ? "true" : "false", expected ? "true" : "false");
  return *this;
}

OpCheck& OpCheck::integer(const char* name, int64_t expected) {
  const int64_t found = attribute(name, Attribute::Kind::kInt).i;
  if (found != expected) mismatch(name, std::to_string(found), std::to_string(expected));
  return *this;
}

OpCheck& OpCheck::number(const char* name, float expected) {
  const float found = number(name);
  if (found != expected) mismatch(name, std::to_string(found), std::to_string(expected));
  return *this;
}

OpCheck& OpCheck::ints(const char* name, const std::vector<int64_t>& expected) {
  const std::vector<int64_t>& found = ints(name);
  if (found != expected) mismatch(name, to_text(found), to_text(expected));
  return *this;
}

OpCheck& OpCheck::elementwise() {
  for (const char* name : {"Scale_x", "Scale_y", "Scale_out"}) {
    if (node_->op->attributes.count(name) > 0) number(name, 1.0f);
  }
  return integer("axis", -1);
}

ValueId OpCheck::input(const char* parameter) {
  checked_.insert(parameter);
  const auto found = node_->inputs.find(parameter);
  const size_t count = found == node_->inputs.end() ? 0 : found->second.size();
  if (count != 1) refuse("has " + std::to_string(count) + " inputs " + parameter + "; expected one");
  return found->second[0];
}

float OpCheck::number(const char* name) {
  const float found = attribute(name, Attribute::Kind::kFloat).f;
  if (!std::isfinite(found)) mismatch(name, std::to_string(found), "a finite number");
  return found;
}

const std::vector<int64_t>& OpCheck::ints(const char* name) {
  return attribute(name, Attribute::Kind::kInts).ints;
}

const Tensor& OpCheck::tensor(const char* parameter) {
  const Tensor* tensor = graph_.value(input(parameter)).tensor;
  if (tensor == nullptr) refuse(std::string(parameter) + " is computed; expected a tensor of the file");
  return *tensor;
}

const float* OpCheck::floats(const char* parameter, const std::vector<int64_t>& shape) {
  const Tensor& found = tensor(parameter);
  if (!has_shape(found, DataType::kFloat32, shape)) {
    graph_.damaged(*node_, "tensor " + to_text(found) + "; expected float32 " + to_text(shape));
  }
  return reinterpret_cast<const float*>(found.data);
}

ValueId OpCheck::out() {
  for (const auto& input : node_->inputs) {
    if (input.second.empty() || checked_.count(input.first) > 0) continue;
    refuse("has an input " + input.first + "; expected none");
  }
  for (const auto& attribute : node_->op->attributes) {
    const std::string& name = attribute.first;
    if (checked_.count(name) > 0 || is_noise(name) || is_off(attribute.second)) continue;
    refuse("has the attribute " + name + ", whose effect this runtime does not know; expected none");
  }
  if (node_->claimed) refuse("is part of two patterns at once");
  node_->claimed = true;
  return node_->output;
}

}  // namespace edge_kit
