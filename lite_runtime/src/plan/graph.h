// The program in SSA form: variable names resolved, once and in program order, to numbered values.
//
// A file may let one name stand for several values in turn (opt reuses memory, the exporter shares a scratch
// variable between weights). Owner: a graph points into the NbFile it was made from. Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "io/nb_file.h"

namespace edge_kit {

using ValueId = int;

struct Value {
  std::string name;
  int definition = -1;  // index of the op that gives it; -1 for a tensor of the file
  const Tensor* tensor = nullptr;
  std::vector<int> users;  // ops that read it, each once, in program order
};

struct Node {
  int index;
  const Op* op;
  std::map<std::string, std::vector<ValueId>> inputs;
  ValueId output = -1;   // -1 for fetch
  bool claimed = false;  // belongs to a step
};

class Graph {
 public:
  explicit Graph(const NbFile& file);

  std::vector<Node>& nodes() { return nodes_; }
  const Value& value(ValueId id) const { return values_[static_cast<size_t>(id)]; }
  bool is_constant(ValueId id) const { return value(id).tensor != nullptr; }
  Node* definition(ValueId id, const char* type);  // null if not given by an op of this type
  std::vector<Node*> users(ValueId id, const char* type);

  // The program's inputs and outputs by column. `feed` gives -1 if there is no such column.
  const std::map<int64_t, ValueId>& feeds() const { return feeds_; }
  const std::map<int64_t, ValueId>& fetches() const { return fetches_; }
  ValueId feed(int64_t column) const;
  int64_t feed_column(ValueId id) const;  // -1 if `id` is no input
  const NbFile& file() const { return file_; }

  // Throw EK_ERR_NOT_SUPPORTED: "<file>: op 12 (softmax): <problem>. <what to do>".
  [[noreturn]] void refuse(const Node& node, const std::string& problem) const;
  [[noreturn]] void refuse(const std::string& problem) const;
  // The same for damage: EK_ERR_FORMAT.
  [[noreturn]] void damaged(const Node& node, const std::string& problem) const;
  // For an op that no sequence has claimed.
  [[noreturn]] void refuse_unknown(const Node& node) const;
  // For a value that `reader` needs and no step gives: names the first unclaimed op on the way to it.
  [[noreturn]] void refuse_unlowered(const Node& reader, ValueId id) const;

 private:
  void add(Node node);
  void read_inputs(Node* node);
  void define_outputs(Node* node);
  ValueId new_value(const Node& node, const std::string& name);
  void add_column(const Node& node, ValueId id, std::map<int64_t, ValueId>* columns);

  const NbFile& file_;
  std::vector<Node> nodes_;
  std::vector<Value> values_;
  std::map<std::string, ValueId> current_;  // what each name stands for at this point of the program
  std::map<int64_t, ValueId> feeds_, fetches_;
};

}  // namespace edge_kit
