#include "engine/executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <variant>

#include "engine/step_access.h"

namespace edge_kit {
namespace {

// Floats per row: rows start on cache lines.
int64_t stride_of(const Plan& plan, size_t buffer) {
  return static_cast<int>(buffer) == plan.logits ? 0 : round_up(plan.buffer_widths[buffer], 16);
}

int64_t most_groups(const Plan& plan) {
  int64_t groups = 0;
  for (const Step& step : plan.steps) {
    if (const LinearStep* linear = std::get_if<LinearStep>(&step.op)) {
      groups = std::max(groups, groups_of(linear->weights.front().k));
    }
  }
  return groups;
}

// Of the activation within an MLP.
int64_t most_mlp_groups(const Plan& plan) {
  int64_t groups = 0;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    if (is_int8_mlp(plan, i)) {
      groups = std::max(groups, groups_of(std::get<SiluMulStep>(plan.steps[i + 1].op).width));
    }
  }
  return groups;
}

int64_t angle_width(const Plan& plan) { return 2 * static_cast<int64_t>(plan.inv_freq.size()); }

int64_t floats_per_row(const Plan& plan) {
  int64_t floats = 0;
  for (size_t b = 0; b < plan.buffer_widths.size(); ++b) floats += stride_of(plan, b);
  return floats;
}

void embed(const EmbeddingStep& step, int32_t id, float* y) {
  const int64_t begin = static_cast<int64_t>(id) * step.k;
  if (step.scale == nullptr) {
    std::memcpy(y, static_cast<const float*>(step.table) + begin,
                static_cast<size_t>(step.k) * sizeof(float));
    return;
  }
  const int8_t* row = static_cast<const int8_t*>(step.table) + begin;
  for (int64_t i = 0; i < step.k; ++i) y[i] = static_cast<float>(row[i]) * step.scale[id];
}

}  // namespace

Executor::Executor(const Plan& plan, const Kernels& kernels, ThreadPool& pool, const KvLayout& layout,
                   bool exact, int64_t chunk_rows)
    : plan_(plan),
      kernels_(kernels),
      pool_(pool),
      layout_(layout),
      exact_(exact),
      live_(live_buffers(plan, plan.first_row_local_step)) {
  for (const Step& step : plan.steps) {
    const StepAccess access = step_access(step);
    int64_t cost = 0;
    for (const Access& read : access.reads) cost += read.width;
    if (!std::holds_alternative<LinearStep>(step.op)) {
      for (const Access& write : access.writes) cost += write.width;
    }
    row_cost_.push_back(cost);
    is_mlp_.push_back(!exact && is_int8_mlp(plan, row_cost_.size() - 1));
  }
  floats_ = make_aligned<float>(chunk_rows * floats_per_row(plan));
  cos_ = make_aligned<float>(chunk_rows * angle_width(plan));
  sin_ = make_aligned<float>(chunk_rows * angle_width(plan));
  partials_ = make_aligned<float>(partial_floats_of(plan));
  if (!exact) {
    quantized_.allocate(chunk_rows * most_groups(plan));
    quantized_mlp_.allocate(chunk_rows * most_mlp_groups(plan));
  }
  float* next = floats_.get();
  for (size_t b = 0; b < plan.buffer_widths.size(); ++b) {
    buffers_.push_back({next, stride_of(plan, b)});
    next += chunk_rows * stride_of(plan, b);
  }
  buffers_[static_cast<size_t>(plan.logits)] = {nullptr, plan.n_vocab};
}

int64_t Executor::workspace_bytes(const Plan& plan, bool exact, int64_t chunk_rows) {
  const int64_t floats = floats_per_row(plan) + 2 * angle_width(plan);
  const int64_t groups = exact ? 0 : most_groups(plan) + most_mlp_groups(plan);
  const int64_t quantized = groups * (kGroup + 8);  // values, scale, offset
  const int64_t float_bytes = static_cast<int64_t>(sizeof(float));
  return chunk_rows * (floats * float_bytes + quantized) + partial_floats_of(plan) * float_bytes;
}

void Executor::run(const Chunk& chunk, float* logits, const std::function<void()>& check) {
  chunk_ = &chunk;
  rows_ = chunk.rows();
  buffers_[static_cast<size_t>(plan_.logits)].data = logits;
  if (profile_ != nullptr) profile_->lap_other();
  compute_angles();
  if (profile_ != nullptr) profile_->lap_angles();
  plan_attention();
  size_t begin = 0;  // of the row-wise steps that wait to be run
  for (size_t i = 0; i < plan_.steps.size(); ++i) {
    if (i == plan_.first_row_local_step) {
      run_rows(begin, i);
      begin = i;
      if (chunk.wanted.empty()) return;
      keep_wanted_rows();
    }
    const LinearStep* linear = std::get_if<LinearStep>(&plan_.steps[i].op);
    const AttentionStep* attention = std::get_if<AttentionStep>(&plan_.steps[i].op);
    if (linear == nullptr && attention == nullptr) continue;
    run_rows(begin, i + 1);
    if (is_mlp_[i] && rows_ > kStreamedRows) {
      run_mlp(i);
      i += kMlpSteps - 1;
    } else if (linear != nullptr) {
      run_linear(*linear, quantized_);
      if (profile_ != nullptr) profile_->lap_linear(i, rows_);
    }
    if (attention != nullptr) {
      check();
      run_attention(*attention);
      if (profile_ != nullptr) profile_->lap_attention(i, chunk);
    }
    begin = i + 1;
  }
  run_rows(begin, plan_.steps.size());
}

// Calls function(row) for all rows, on several threads if that pays.
template <typename Function>
void Executor::for_rows(int64_t cost_per_row, const Function& function) {
  const int64_t rows = rows_;
  if (rows == 1 || rows * cost_per_row < kTinyWork) {
    for (int64_t r = 0; r < rows; ++r) function(r);
    return;
  }
  const int64_t units = std::min<int64_t>(rows, pool_.n_threads() * kUnitsPerThread);
  share(units, [&](int64_t unit) {
    for (int64_t r = rows * unit / units; r < rows * (unit + 1) / units; ++r) function(r);
  });
}

// cos and sin of position * inv_freq; the product is rounded to fp32, as in the program.
void Executor::compute_angles() {
  const int64_t half = static_cast<int64_t>(plan_.inv_freq.size());
  if (half == 0) return;
  for_rows(16 * half, [&](int64_t r) {
    float* cos = cos_.get() + r * 2 * half;
    float* sin = sin_.get() + r * 2 * half;
    const float position = static_cast<float>(chunk_->positions[static_cast<size_t>(r)]);
    for (int64_t i = 0; i < half; ++i) {
      const double angle = position * plan_.inv_freq[static_cast<size_t>(i)];
      cos[i] = cos[half + i] = static_cast<float>(std::cos(angle));
      sin[i] = sin[half + i] = static_cast<float>(std::sin(angle));
    }
  });
}

// Moves the rows whose logits are wanted to the front.
void Executor::keep_wanted_rows() {
  const std::vector<int64_t>& wanted = chunk_->wanted;
  if (static_cast<int64_t>(wanted.size()) == rows_) return;
  for (int index : live_) {
    const Buffer& values = buffer(index);
    for (size_t to = 0; to < wanted.size(); ++to) {
      const int64_t from = wanted[to];
      if (from == static_cast<int64_t>(to)) continue;
      std::memcpy(values.row(static_cast<int64_t>(to)), values.row(from),
                  static_cast<size_t>(values.stride) * sizeof(float));
    }
  }
  rows_ = static_cast<int64_t>(wanted.size());
}

// Steps [begin, end) row by row; of a linear or an attention at the end, the part that is done per row.
void Executor::run_rows(size_t begin, size_t end) {
  int64_t cost = 0;
  for (size_t i = begin; i < end; ++i) cost += row_cost_[i];
  if (cost == 0) return;
  if (profile_ != nullptr) profile_->begin_rows(begin, end);
  for_rows(cost, [&](int64_t row) {
    for (size_t i = begin; i < end; ++i) {
      run_row(plan_.steps[i], row);
      if (profile_ != nullptr) profile_->lap_row(i);
    }
  });
  if (profile_ != nullptr) profile_->end_rows(begin, end, rows_);
}

void Executor::run_row(const Step& step, int64_t row) {
  std::visit(
      [&](const auto& s) {
        using Type = std::decay_t<decltype(s)>;
        if constexpr (std::is_same_v<Type, EmbeddingStep>) {
          embed(s, chunk_->ids[static_cast<size_t>(row)], buffer(s.output).row(row));
        } else if constexpr (std::is_same_v<Type, RmsNormStep>) {
          kernels_.rms_norm(buffer(s.input).row(row), s.weight, s.eps, s.k, buffer(s.output).row(row));
        } else if constexpr (std::is_same_v<Type, RopeStep>) {
          const int64_t angles = row * angle_width(plan_);
          kernels_.rope(buffer(s.value).row(row), cos_.get() + angles, sin_.get() + angles, s.heads, s.dim);
        } else if constexpr (std::is_same_v<Type, SiluMulStep>) {
          kernels_.silu_mul(buffer(s.gate).row(row), buffer(s.up).row(row), buffer(s.output).row(row),
                            s.width);
        } else if constexpr (std::is_same_v<Type, AddStep>) {
          kernels_.add(buffer(s.a).row(row), buffer(s.b).row(row), buffer(s.output).row(row), s.width);
        } else if constexpr (std::is_same_v<Type, AttentionStep>) {
          append(s, row);
        } else {
          static_assert(std::is_same_v<Type, LinearStep>);
          if (needs_quantized(s)) quantize(s, row);
        }
      },
      step.op);
}

}  // namespace edge_kit
