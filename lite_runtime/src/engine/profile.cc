#include "engine/profile.h"

#include <type_traits>
#include <utility>
#include <variant>

namespace edge_kit {
namespace {

std::string all_names(const LinearStep& step) {
  std::string names;
  for (const std::string& name : step.names) names += (names.empty() ? "" : " + ") + name;
  return names;
}

ek_step_kind row_kind(const Step& step) {
  return std::visit(
      [](const auto& s) {
        using Type = std::decay_t<decltype(s)>;
        if constexpr (std::is_same_v<Type, EmbeddingStep>) return EK_STEP_EMBEDDING;
        if constexpr (std::is_same_v<Type, RmsNormStep>) return EK_STEP_NORM;
        if constexpr (std::is_same_v<Type, LinearStep>) return EK_STEP_QUANTIZATION;
        if constexpr (std::is_same_v<Type, RopeStep>) return EK_STEP_ROPE;
        if constexpr (std::is_same_v<Type, AttentionStep>) return EK_STEP_CACHE;
        if constexpr (std::is_same_v<Type, SiluMulStep>) return EK_STEP_ACTIVATION;
        return EK_STEP_ADD;
      },
      step.op);
}

// Bytes of the model that the row-wise part of a step reads.
int64_t row_bytes(const Step& step, int64_t rows) {
  constexpr int64_t kFloat = static_cast<int64_t>(sizeof(float));
  if (const EmbeddingStep* embedding = std::get_if<EmbeddingStep>(&step.op)) {
    return rows * (embedding->scale != nullptr ? embedding->k + kFloat : embedding->k * kFloat);
  }
  const RmsNormStep* norm = std::get_if<RmsNormStep>(&step.op);
  return norm != nullptr ? norm->k * kFloat : 0;
}

}  // namespace

Profile::Profile(const Plan& plan, int64_t cache_bytes)
    : plan_(plan), cache_bytes_(cache_bytes), entries_(other() + 1), row_laps_(plan.steps.size()) {
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    const LinearStep* linear = std::get_if<LinearStep>(&step.op);
    const std::string name = linear != nullptr ? all_names(*linear) : step.name;
    entries_[i].name = entries_[main_part(i)].name = name;
    entries_[i].kind = row_kind(step);
    entries_[main_part(i)].kind = linear != nullptr ? EK_STEP_LINEAR : EK_STEP_ATTENTION;
  }
  entries_[angles()].name = "rope.angles";
  entries_[angles()].kind = EK_STEP_ROPE;
  entries_[other()].name = "forward";
}

void Profile::start() {
  caller_ = std::this_thread::get_id();
  last_ = Clock::now();
}

double Profile::elapsed() {
  const Clock::time_point now = Clock::now();
  return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
}

void Profile::credit(size_t slot, double seconds, int64_t bytes, int64_t operations) {
  Entry& entry = entries_[slot];
  ++entry.calls;
  entry.seconds += seconds;
  entry.bytes += bytes;
  entry.operations += operations;
}

void Profile::lap_other() { credit(other(), elapsed(), 0, 0); }
void Profile::lap_angles() { credit(angles(), elapsed(), 0, 0); }

void Profile::begin_rows(size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) row_laps_[i] = 0;
}

void Profile::lap_row(size_t step) {
  if (std::this_thread::get_id() == caller_) row_laps_[step] += elapsed();
}

void Profile::end_rows(size_t begin, size_t end, int64_t rows) {
  const double waited = elapsed();
  double lapped = 0;
  for (size_t i = begin; i < end; ++i) lapped += row_laps_[i];
  for (size_t i = begin; i < end; ++i) {
    // A caller that was held up may have done no row.
    const double part = lapped > 0 ? row_laps_[i] / lapped : 1.0 / static_cast<double>(end - begin);
    credit(i, row_laps_[i] + waited * part, row_bytes(plan_.steps[i], rows), 0);
  }
}

void Profile::lap_linear(size_t step, int64_t rows) {
  int64_t bytes = 0, multiplications = 0;
  for (const Weight& w : std::get<LinearStep>(plan_.steps[step].op).weights) {
    bytes += w.n * w.k * (w.is_int8 ? 1 : 4) + w.n * 4 * ((w.scale != nullptr) + (w.bias != nullptr));
    multiplications += rows * w.n * w.k;
  }
  credit(main_part(step), elapsed(), bytes, multiplications);
}

void Profile::lap_attention(size_t step, const Chunk& chunk) {
  const AttentionStep& attention = std::get<AttentionStep>(plan_.steps[step].op);
  int64_t tokens = 0, visible = 0;  // keys that a row sees, summed over rows
  for (const Piece& piece : chunk.pieces) {
    tokens += piece.first_position + piece.rows;
    visible += piece.rows * piece.first_position + piece.rows * (piece.rows + 1) / 2;
  }
  credit(main_part(step), elapsed(), tokens * cache_bytes_,
         2 * visible * attention.n_heads * attention.head_dim);
}

std::vector<const Profile::Entry*> Profile::ran() const {
  std::vector<const Entry*> ran;
  const auto append = [&](size_t slot) {
    if (entries_[slot].calls > 0) ran.push_back(&entries_[slot]);
  };
  append(angles());
  for (size_t i = 0; i < plan_.steps.size(); ++i) {
    append(i);
    append(main_part(i));
  }
  append(other());
  return ran;
}

void Profile::reset() {
  for (Entry& entry : entries_) {
    entry.calls = entry.bytes = entry.operations = 0;
    entry.seconds = 0;
  }
}

}  // namespace edge_kit
