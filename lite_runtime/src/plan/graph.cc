#include "plan/graph.h"

#include <algorithm>
#include <utility>

namespace edge_kit {
namespace {

// The opt whose programs the patterns are written after; the exporter's own writer names it too.
constexpr char kOptVersion[] = "v2.13-rc";

std::string op_text(const Node& node) {
  return "op " + std::to_string(node.index) + " (" + node.op->type + "): ";
}

}  // namespace

Graph::Graph(const NbFile& file) : file_(file) {
  for (const Tensor& tensor : file.tensors()) {
    Value value;
    value.name = tensor.name;
    value.tensor = &tensor;
    current_[tensor.name] = static_cast<ValueId>(values_.size());
    values_.push_back(std::move(value));
  }
  nodes_.reserve(file.ops().size());
  for (const Op& op : file.ops()) {
    Node node;
    node.index = static_cast<int>(nodes_.size());
    node.op = &op;
    add(std::move(node));
  }
}

void Graph::add(Node node) {
  const std::string& type = node.op->type;
  node.claimed = type == "feed" || type == "fetch";
  if (type != "feed") read_inputs(&node);  // a feed's input is a list kept by the runtime, no value
  if (type != "fetch") define_outputs(&node);
  if (type == "feed") add_column(node, node.output, &feeds_);
  if (type == "fetch") {
    const auto x = node.inputs.find("X");
    if (x == node.inputs.end() || x->second.size() != 1) refuse(node, "expected one input X");
    add_column(node, x->second[0], &fetches_);
  }
  nodes_.push_back(std::move(node));
}

void Graph::read_inputs(Node* node) {
  for (const auto& input : node->op->inputs) {
    std::vector<ValueId>& ids = node->inputs[input.first];
    for (const std::string& name : input.second) {
      const auto found = current_.find(name);
      if (found == current_.end()) {
        damaged(*node, "reads '" + name + "', which is no tensor of the file and no op before gives");
      }
      ids.push_back(found->second);
      std::vector<int>& users = values_[static_cast<size_t>(found->second)].users;
      if (users.empty() || users.back() != node->index) users.push_back(node->index);
    }
  }
}

// Out is the result. XShape is a by-product that nothing may read, yet it replaces what its name stood for.
void Graph::define_outputs(Node* node) {
  for (const auto& output : node->op->outputs) {
    const bool is_result = output.first == "Out";
    if ((!is_result && output.first != "XShape") || output.second.size() > 1) {
      if (output.second.empty()) continue;
      refuse(*node, "gives " + std::to_string(output.second.size()) + " values as " + output.first +
                        "; no op of a known pattern does");
    }
    for (const std::string& name : output.second) {
      const ValueId id = new_value(*node, name);
      if (is_result) node->output = id;
    }
  }
  if (node->output < 0) refuse(*node, "has no output Out");
}

ValueId Graph::new_value(const Node& node, const std::string& name) {
  const auto found = current_.find(name);
  if (found != current_.end()) {
    if (is_constant(found->second)) refuse(node, "overwrites the tensor '" + name + "'");
    if (value(found->second).definition == node.index) refuse(node, "gives two values the name " + name);
  }
  const ValueId id = static_cast<ValueId>(values_.size());
  Value result;
  result.name = name;
  result.definition = node.index;
  values_.push_back(std::move(result));
  current_[name] = id;
  return id;
}

void Graph::add_column(const Node& node, ValueId id, std::map<int64_t, ValueId>* columns) {
  const auto col = node.op->attributes.find("col");
  if (col == node.op->attributes.end() || col->second.kind != Attribute::Kind::kInt || col->second.i < 0) {
    refuse(node, "has no column (attribute col)");
  }
  if (!columns->emplace(col->second.i, id).second) {
    refuse(node, "column " + std::to_string(col->second.i) + " is taken by another " + node.op->type);
  }
}

Node* Graph::definition(ValueId id, const char* type) {
  const int index = value(id).definition;
  if (index < 0 || nodes_[static_cast<size_t>(index)].op->type != type) return nullptr;
  return &nodes_[static_cast<size_t>(index)];
}

std::vector<Node*> Graph::users(ValueId id, const char* type) {
  std::vector<Node*> found;
  for (int index : value(id).users) {
    Node& node = nodes_[static_cast<size_t>(index)];
    if (node.op->type == type) found.push_back(&node);
  }
  return found;
}

ValueId Graph::feed(int64_t column) const {
  const auto found = feeds_.find(column);
  return found == feeds_.end() ? -1 : found->second;
}

int64_t Graph::feed_column(ValueId id) const {
  const int index = value(id).definition;
  if (index < 0 || nodes_[static_cast<size_t>(index)].op->type != "feed") return -1;
  return nodes_[static_cast<size_t>(index)].op->attributes.at("col").i;
}

void Graph::refuse(const std::string& problem) const {
  // Before the op: where the versions differ, that is the likelier cause.
  const std::string& opt = file_.opt_version();
  const std::string versions =
      opt == kOptVersion ? "" : "written by opt " + opt + ", this runtime follows " + kOptVersion + "; ";
  throw Error(EK_ERR_NOT_SUPPORTED, file_.path() + ": " + versions + problem +
                                      ". This runtime runs the decoder programs that edge-kit export writes; "
                                      "export the model again");
}

void Graph::refuse(const Node& node, const std::string& problem) const { refuse(op_text(node) + problem); }

void Graph::refuse_unknown(const Node& node) const {
  refuse(node, "belongs to no known sequence of ops; expected the ops of a Qwen2 or Llama decoder");
}

void Graph::damaged(const Node& node, const std::string& problem) const {
  throw Error(EK_ERR_FORMAT, file_.path() + ": " + op_text(node) + problem +
                                 ". The file is damaged or was not finished; export the model again");
}

void Graph::refuse_unlowered(const Node& reader, ValueId id) const {
  std::vector<bool> seen(nodes_.size(), false);
  std::vector<ValueId> pending = {id};
  const Node* first = nullptr;
  while (!pending.empty()) {
    const int index = value(pending.back()).definition;
    pending.pop_back();
    if (index < 0 || seen[static_cast<size_t>(index)]) continue;
    seen[static_cast<size_t>(index)] = true;
    const Node& node = nodes_[static_cast<size_t>(index)];
    if (node.claimed) continue;
    if (first == nullptr || node.index < first->index) first = &node;
    for (const auto& x : node.inputs) pending.insert(pending.end(), x.second.begin(), x.second.end());
  }
  if (first != nullptr) refuse_unknown(*first);
  refuse(reader, "reads '" + value(id).name + "', which no step gives at this point");
}

}  // namespace edge_kit
