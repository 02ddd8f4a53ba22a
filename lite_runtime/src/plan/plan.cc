#include "plan/plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <type_traits>
#include <utility>

#include "plan/match.h"

namespace edge_kit {
namespace {

// What a step reads and writes. Rope works in place: its value is read, and stays where it is.
struct Operands {
  std::vector<int*> reads, writes;
};

Operands operands(Step& step) {
  Operands o;
  const auto visit = [&o](auto& op) {
    using T = std::decay_t<decltype(op)>;
    if constexpr (std::is_same_v<T, EmbeddingStep>) o = {{}, {&op.output}};
    if constexpr (std::is_same_v<T, RmsNormStep>) o = {{&op.input}, {&op.output}};
    if constexpr (std::is_same_v<T, RopeStep>) o = {{&op.value}, {}};
    if constexpr (std::is_same_v<T, AttentionStep>) o = {{&op.q, &op.k, &op.v}, {&op.output}};
    if constexpr (std::is_same_v<T, SiluMulStep>) o = {{&op.gate, &op.up}, {&op.output}};
    if constexpr (std::is_same_v<T, AddStep>) o = {{&op.a, &op.b}, {&op.output}};
    if constexpr (std::is_same_v<T, LinearStep>) {
      o.reads = {&op.input};
      for (int& output : op.outputs) o.writes.push_back(&output);
    }
  };
  std::visit(visit, step.op);
  return o;
}

// Linears that read the same value become one step, in the place of the first: they depend on nothing else.
void group_linears(std::vector<Step>* steps) {
  std::map<std::pair<int, bool>, size_t> first;  // (input, int8) -> position in `grouped`
  std::vector<Step> grouped;
  for (Step& step : *steps) {
    if (auto* linear = std::get_if<LinearStep>(&step.op)) {
      const auto key = std::make_pair(linear->input, linear->weights[0].is_int8);
      const auto found = first.emplace(key, grouped.size());
      if (!found.second) {
        auto& group = std::get<LinearStep>(grouped[found.first->second].op);
        group.weights.push_back(linear->weights[0]);
        group.names.push_back(linear->names[0]);
        group.outputs.push_back(linear->outputs[0]);
        continue;
      }
    }
    grouped.push_back(std::move(step));
  }
  *steps = std::move(grouped);
}

// Buffers for values: a buffer is free again after the last step that reads its value.
class BufferPool {
 public:
  explicit BufferPool(std::vector<int64_t>* widths) : widths_(*widths) {}

  // The narrowest free buffer that is wide enough, else the widest free one, widened, else a new one.
  int take(int64_t width) {
    auto fit = free_.lower_bound({width, -1});
    if (fit == free_.end() && !free_.empty()) fit = std::prev(free_.end());
    if (fit == free_.end()) {
      widths_.push_back(width);
      return static_cast<int>(widths_.size()) - 1;
    }
    const int buffer = fit->second;
    free_.erase(fit);
    int64_t& available = widths_[static_cast<size_t>(buffer)];
    available = std::max(available, width);
    return buffer;
  }

  void give_back(int buffer) { free_.insert({widths_[static_cast<size_t>(buffer)], buffer}); }

 private:
  std::vector<int64_t>& widths_;
  std::set<std::pair<int64_t, int>> free_;  // (width, buffer)
};

// Replaces value ids by buffers. The logits get one of their own: it is the widest, and wanted for few rows.
void allocate(const std::map<ValueId, int64_t>& widths, ValueId logits, Plan* plan) {
  std::map<ValueId, size_t> last_use;
  for (size_t i = 0; i < plan->steps.size(); ++i) {
    const Operands o = operands(plan->steps[i]);
    for (const int* id : o.writes) last_use[*id] = i;  // for a value that nobody reads
    for (const int* id : o.reads) last_use[*id] = i;
  }
  BufferPool pool(&plan->buffer_widths);
  std::map<ValueId, int> live;
  for (size_t i = 0; i < plan->steps.size(); ++i) {
    Step& step = plan->steps[i];
    const Operands o = operands(step);
    std::set<ValueId> dying;
    for (const int* id : o.reads) {
      if (last_use[*id] == i) dying.insert(*id);
    }
    for (int* id : o.reads) *id = live.at(*id);
    const auto release = [&] {
      for (ValueId id : dying) pool.give_back(live.at(id));
      dying.clear();
    };
    // Only these kernels may write over what they read.
    if (std::holds_alternative<AddStep>(step.op) || std::holds_alternative<SiluMulStep>(step.op)) release();
    for (int* id : o.writes) {
      const ValueId value = *id;
      if (value == logits) {
        plan->buffer_widths.push_back(widths.at(value));
        plan->logits = *id = static_cast<int>(plan->buffer_widths.size()) - 1;
        continue;
      }
      *id = live[value] = pool.take(widths.at(value));
      if (last_use[value] == i) dying.insert(value);
    }
    release();
  }
}

int64_t weight_bytes(const Weight& w) {
  const int64_t columns = (w.scale != nullptr ? 1 : 0) + (w.bias != nullptr ? 1 : 0);
  return w.n * w.k * (w.is_int8 ? 1 : 4) + columns * w.n * 4;
}

int64_t bytes_per_token(const std::vector<Step>& steps) {
  int64_t bytes = 0;
  for (const Step& step : steps) {
    if (const auto* row = std::get_if<EmbeddingStep>(&step.op)) bytes += row->scale ? row->k + 4 : row->k * 4;
    if (const auto* norm = std::get_if<RmsNormStep>(&step.op)) bytes += norm->k * 4;
    if (const auto* linear = std::get_if<LinearStep>(&step.op)) {
      for (const Weight& w : linear->weights) bytes += weight_bytes(w);
    }
  }
  return bytes;
}

// Outputs: the logits, given by the last step, then key and value of each layer. Returns the logits.
ValueId check_outputs(const Graph& graph, const Lowering& l) {
  const size_t expected = 1 + l.present.size();
  if (l.n_layers == 0) graph.refuse("the program has no attention");
  if (l.hidden_size == 0) graph.refuse("the program has no embedding");
  if (graph.fetches().size() != expected || graph.feeds().size() != kPastColumn + l.present.size()) {
    graph.refuse("the program has " + std::to_string(graph.feeds().size()) + " inputs and " +
                 std::to_string(graph.fetches().size()) + " outputs; expected " +
                 std::to_string(kPastColumn + l.present.size()) + " and " + std::to_string(expected) +
                 " for its attentions");
  }
  for (size_t i = 0; i < l.present.size(); ++i) {
    const auto found = graph.fetches().find(static_cast<int64_t>(1 + i));
    if (found == graph.fetches().end() || found->second != l.present[i]) {
      graph.refuse("output column " + std::to_string(1 + i) + " is not '" + graph.value(l.present[i]).name +
                   "', the keys or values of layer " + std::to_string(i / 2));
    }
  }
  const auto found = graph.fetches().find(0);
  const auto* head = std::get_if<LinearStep>(&l.steps.back().op);
  if (found == graph.fetches().end() || head == nullptr || head->outputs != std::vector<int>{found->second}) {
    graph.refuse("output column 0 is not given by a linear at the program's end; expected the logits");
  }
  if (head->weights[0].n != l.n_vocab) {
    graph.refuse("there are " + std::to_string(head->weights[0].n) + " logits for an embedding of " +
                 std::to_string(l.n_vocab) + " tokens; expected as many");
  }
  return found->second;
}

}  // namespace

Plan make_plan(const NbFile& file) {
  Graph graph(file);
  Lowering l = lower(graph);
  group_linears(&l.steps);
  const ValueId logits = check_outputs(graph, l);

  Plan plan;
  plan.steps = std::move(l.steps);
  allocate(l.widths, logits, &plan);
  plan.inv_freq = std::move(l.inv_freq);
  plan.n_vocab = l.n_vocab;
  plan.n_layers = l.n_layers;
  plan.hidden_size = l.hidden_size;
  plan.n_heads = l.n_heads;
  plan.n_kv_heads = l.n_kv_heads;
  plan.head_dim = l.head_dim;
  plan.parameter_bytes_per_token = bytes_per_token(plan.steps);
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    if (std::holds_alternative<AttentionStep>(plan.steps[i].op)) plan.first_row_local_step = i + 1;
  }
  return plan;
}

}  // namespace edge_kit
