#include "engine/step_access.h"

#include <algorithm>
#include <set>
#include <string>
#include <variant>

namespace edge_kit {
namespace {

struct Visitor {
  StepAccess operator()(const EmbeddingStep& s) const { return {{}, {{s.output, s.k}}}; }
  StepAccess operator()(const RmsNormStep& s) const { return {{{s.input, s.k}}, {{s.output, s.k}}}; }
  StepAccess operator()(const LinearStep& s) const {
    StepAccess access;
    for (size_t i = 0; i < s.weights.size(); ++i) {
      access.reads.push_back({s.input, s.weights[i].k});
      access.writes.push_back({s.outputs[i], s.weights[i].n});
    }
    return access;
  }
  StepAccess operator()(const RopeStep& s) const {
    return {{{s.value, s.heads * s.dim}}, {{s.value, s.heads * s.dim}}};
  }
  StepAccess operator()(const AttentionStep& s) const {
    const int64_t q = s.n_heads * s.head_dim, kv = s.n_kv_heads * s.head_dim;
    return {{{s.q, q}, {s.k, kv}, {s.v, kv}}, {{s.output, q}}};
  }
  StepAccess operator()(const SiluMulStep& s) const {
    return {{{s.gate, s.width}, {s.up, s.width}}, {{s.output, s.width}}};
  }
  StepAccess operator()(const AddStep& s) const {
    return {{{s.a, s.width}, {s.b, s.width}}, {{s.output, s.width}}};
  }
};

bool all_int8(const LinearStep& step) {
  return std::all_of(step.weights.begin(), step.weights.end(), [](const Weight& w) { return w.is_int8; });
}

bool are_chained(const LinearStep& gate_up, const SiluMulStep& activation, const LinearStep& down) {
  const std::vector<int> inputs = {activation.gate, activation.up};
  return gate_up.outputs.size() == 2 && inputs[0] != inputs[1] &&
         std::is_permutation(inputs.begin(), inputs.end(), gate_up.outputs.begin()) &&
         gate_up.weights[0].n == activation.width && gate_up.weights[1].n == activation.width &&
         down.input == activation.output && down.weights.front().k == activation.width;
}

[[noreturn]] void fail(const std::string& what) {
  throw Error(EK_ERR_INTERNAL, "the plan is inconsistent: " + what + " (please report this as a bug)");
}

void check_width(const Plan& plan, const Step& step, const Access& access) {
  const int64_t count = static_cast<int64_t>(plan.buffer_widths.size());
  if (access.buffer < 0 || access.buffer >= count) {
    fail("step " + step.name + " uses buffer " + std::to_string(access.buffer) + " of " +
         std::to_string(count));
  }
  const int64_t width = plan.buffer_widths[static_cast<size_t>(access.buffer)];
  if (access.width < 1 || access.width > width) {
    fail("step " + step.name + " uses " + std::to_string(access.width) + " columns of buffer " +
         std::to_string(access.buffer) + ", which has " + std::to_string(width));
  }
}

void check_heads(const Plan& plan, const Step& step, const AttentionStep& a) {
  const bool as_planned = a.layer >= 0 && a.layer < plan.n_layers && a.n_kv_heads == plan.n_kv_heads &&
                          a.head_dim == plan.head_dim && a.head_dim <= kMaxHeadDim;
  if (!as_planned || a.n_heads % a.n_kv_heads != 0)
    fail("the heads of " + step.name + " differ from the plan's");
}

}  // namespace

StepAccess step_access(const Step& step) { return std::visit(Visitor{}, step.op); }

void check_plan(const Plan& plan) {
  if (plan.steps.empty()) fail("it has no steps");
  if (plan.first_row_local_step >= plan.steps.size()) fail("its last step is not row-local");
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    const StepAccess access = step_access(step);
    const bool last = i + 1 == plan.steps.size();
    for (const Access& read : access.reads) {
      check_width(plan, step, read);
      if (read.buffer == plan.logits) fail("step " + step.name + " reads the logits' buffer");
    }
    for (const Access& write : access.writes) {
      check_width(plan, step, write);
      if ((write.buffer == plan.logits) != last) fail("the logits are not what the last step alone writes");
      if (last && write.width != plan.n_vocab) fail("the logits are not n_vocab wide");
    }
    const RopeStep* rope = std::get_if<RopeStep>(&step.op);
    const AttentionStep* attention = std::get_if<AttentionStep>(&step.op);
    if (i >= plan.first_row_local_step && (rope != nullptr || attention != nullptr)) {
      fail("step " + step.name + " is not row-local");
    }
    if (rope != nullptr && rope->dim != 2 * static_cast<int64_t>(plan.inv_freq.size())) {
      fail("step " + step.name + " turns " + std::to_string(rope->dim) + " columns by " +
           std::to_string(plan.inv_freq.size()) + " frequencies");
    }
    if (attention != nullptr) check_heads(plan, step, *attention);
  }
}

std::vector<int> live_buffers(const Plan& plan, size_t first) {
  std::set<int> live, written;
  for (size_t i = first; i < plan.steps.size(); ++i) {
    const StepAccess access = step_access(plan.steps[i]);
    for (const Access& read : access.reads) {
      if (written.count(read.buffer) == 0) live.insert(read.buffer);
    }
    for (const Access& write : access.writes) written.insert(write.buffer);
  }
  return std::vector<int>(live.begin(), live.end());
}

bool is_int8_mlp(const Plan& plan, size_t first) {
  const size_t end = first + kMlpSteps;
  if (end > plan.steps.size()) return false;
  if (first < plan.first_row_local_step && plan.first_row_local_step < end) return false;
  const LinearStep* gate_up = std::get_if<LinearStep>(&plan.steps[first].op);
  const SiluMulStep* activation = std::get_if<SiluMulStep>(&plan.steps[first + 1].op);
  const LinearStep* down = std::get_if<LinearStep>(&plan.steps[first + 2].op);
  if (gate_up == nullptr || activation == nullptr || down == nullptr) return false;
  if (!all_int8(*gate_up) || !all_int8(*down) || activation->width % kGroup != 0) return false;
  if (!are_chained(*gate_up, *activation, *down)) return false;
  for (int live : live_buffers(plan, end)) {
    const bool passes = live == activation->gate || live == activation->up || live == activation->output;
    if (passes && std::count(down->outputs.begin(), down->outputs.end(), live) == 0) return false;
  }
  return true;
}

}  // namespace edge_kit
