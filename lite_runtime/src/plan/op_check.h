// One op held against what a pattern expects of it. A check that fails refuses the program.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "plan/graph.h"

namespace edge_kit {

class OpCheck {
 public:
  OpCheck(Graph& graph, Node* node) : graph_(graph), node_(node) {}

  OpCheck& reads(const char* parameter, const std::vector<ValueId>& expected);
  OpCheck& flag(const char* name, bool expected);
  OpCheck& integer(const char* name, int64_t expected);
  OpCheck& number(const char* name, float expected);
  OpCheck& ints(const char* name, const std::vector<int64_t>& expected);
  OpCheck& elementwise();  // Y is broadcast over X from the last axis; no scales, no activation

  ValueId input(const char* parameter);  // the only value given as this parameter
  float number(const char* name);        // finite
  const std::vector<int64_t>& ints(const char* name);
  const Tensor& tensor(const char* parameter);
  const float* floats(const char* parameter, const std::vector<int64_t>& shape);
  Node& node() const { return *node_; }

  // Claims the op and gives its output. Refuses an input or an attribute that no check has looked at, unless
  // the attribute is known to be without effect.
  ValueId out();

  [[noreturn]] void refuse(const std::string& problem) const { graph_.refuse(*node_, problem); }

 private:
  const Attribute& attribute(const char* name, Attribute::Kind kind);
  [[noreturn]] void mismatch(const char* name, const std::string& found, const std::string& expected) const;

  Graph& graph_;
  Node* node_;
  std::set<std::string> checked_;  // parameters and attributes
};

// The only op that reads `id`; it has to be a `type`.
OpCheck only_user(Graph& graph, ValueId id, const char* type);

// Whether the tensor is of this type and shape, with no size of 0 and as many bytes as that takes.
bool has_shape(const Tensor& tensor, DataType type, const std::vector<int64_t>& shape);

std::string to_text(const std::vector<int64_t>& list);  // "[1, 2]"
std::string to_text(const Tensor& tensor);              // "lm_head.scale float32 [320]"

}  // namespace edge_kit
