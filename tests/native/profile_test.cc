// The profile of a toy model: what it counts, that its parts are the whole, and that it changes nothing.
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "api/handles.h"
#include "edge_kit.h"
#include "test.h"
#include "toy_model.h"

using namespace edge_kit_test;

namespace {

const ToyModel& toy() {
  static const ToyModel model;
  return model;
}

ek_model* open_toy(int n_threads) {
  ModelOptions options;
  options.n_threads = n_threads;
  return new ek_model{toy().open(options)};
}

ek_session* new_session(ek_model* model) {
  ek_session* session = nullptr;
  CHECK(ek_session_create(model, &session) == EK_OK);
  return session;
}

std::vector<float> forward(ek_model* model, ek_session* session, int64_t n_ids) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n_ids; ++i) ids.push_back(static_cast<int32_t>(i * 37 % 203));
  std::vector<float> logits(static_cast<size_t>(toy().shape().n_vocab));
  const ek_segment segment = {session, ids.data(), n_ids, EK_LOGITS_LAST};
  CHECK(ek_forward(model, &segment, 1, logits.data(), logits.size()) == EK_OK);
  return logits;
}

std::vector<ek_profile_entry> take(ek_model* model) {
  size_t count = 0;
  CHECK(ek_model_profile_take(model, nullptr, 0, &count) == EK_OK);
  std::vector<ek_profile_entry> entries(count);
  if (count > 0) entries[0].struct_size = sizeof entries[0];
  CHECK(ek_model_profile_take(model, entries.data(), count, &count) == EK_OK && count == entries.size());
  return entries;
}

std::map<int, ek_profile_entry> by_kind(const std::vector<ek_profile_entry>& entries) {
  std::map<int, ek_profile_entry> sums;
  for (const ek_profile_entry& entry : entries) {
    ek_profile_entry& sum = sums[entry.kind];
    sum.calls += entry.calls;
    sum.seconds += entry.seconds;
    sum.bytes += entry.bytes;
    sum.operations += entry.operations;
  }
  return sums;
}

TEST(counts_what_ran) {
  const ToyShape& s = toy().shape();
  const int64_t kRows = 70, q = s.n_heads * s.head_dim, kv = s.n_kv_heads * s.head_dim;
  const int64_t layer = s.hidden * (q + 2 * kv + q + 3 * s.ffn), head = s.hidden * s.n_vocab;
  const int64_t layer_outputs = q + 2 * kv + 2 * s.hidden + 2 * s.ffn;
  ek_model* model = open_toy(2);
  CHECK(ek_model_profile_start(model) == EK_OK);
  ek_session* session = new_session(model);
  forward(model, session, kRows);
  std::map<int, ek_profile_entry> kinds = by_kind(take(model));
  CHECK(kinds[EK_STEP_EMBEDDING].bytes == kRows * (s.hidden + 4));
  CHECK(kinds[EK_STEP_NORM].calls == 5 && kinds[EK_STEP_NORM].bytes == 5 * s.hidden * 4);
  CHECK(kinds[EK_STEP_LINEAR].calls == 9 && kinds[EK_STEP_QUANTIZATION].calls == 9);
  // Weights, scales, and the biases of q, k and v.
  CHECK(kinds[EK_STEP_LINEAR].bytes == 2 * layer + head + 4 * (2 * layer_outputs + s.n_vocab) +
                                           2 * 4 * (q + 2 * kv));
  // Behind the last attention only the wanted row goes on.
  const int64_t last_rows = s.hidden * (q + 3 * s.ffn);
  CHECK(kinds[EK_STEP_LINEAR].operations == kRows * (2 * layer - last_rows) + last_rows + head);
  CHECK(kinds[EK_STEP_ATTENTION].calls == 2);
  CHECK(kinds[EK_STEP_ATTENTION].operations == 2 * 2 * q * kRows * (kRows + 1) / 2);
  const int64_t cache_bytes = model->core->kv_layout().bytes_per_token();
  CHECK(kinds[EK_STEP_ATTENTION].bytes == kRows * cache_bytes);

  forward(model, session, 1);
  kinds = by_kind(take(model));
  CHECK(kinds[EK_STEP_EMBEDDING].calls == 1);
  CHECK(kinds[EK_STEP_LINEAR].operations == 2 * layer + head);
  CHECK(kinds[EK_STEP_ATTENTION].bytes == (kRows + 1) * cache_bytes);
  CHECK(take(model).empty());
  ek_session_free(session);
  ek_model_close(model);
}

TEST(parts_are_the_whole_and_logits_stay) {
  for (const int threads : {1, 3}) {
    ek_model* model = open_toy(threads);
    ek_session *plain = new_session(model), *profiled = new_session(model);
    const std::vector<float> expected = forward(model, plain, 150);
    CHECK(ek_model_profile_start(model) == EK_OK);
    const auto begin = std::chrono::steady_clock::now();
    CHECK(forward(model, profiled, 150) == expected);
    const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    double sum = 0;
    for (const ek_profile_entry& entry : take(model)) {
      CHECK(entry.seconds >= 0 && entry.calls > 0 && entry.name != nullptr && *entry.name != '\0');
      sum += entry.seconds;
    }
    // What is missing is the call itself; a machine that takes the thread away there gets some room.
    CHECK(sum <= wall && sum > 0.5 * wall);
    CHECK(ek_model_profile_stop(model) == EK_OK);
    CHECK(forward(model, profiled, 1) == forward(model, plain, 1));
    ek_session_free(plain);
    ek_session_free(profiled);
    ek_model_close(model);
  }
}

TEST(misuse) {
  ek_model* model = open_toy(1);
  size_t count = 7;
  const auto refused = [](ek_status status, const char* part) {
    return status == EK_ERR_INVALID_ARGUMENT && std::string(ek_last_error()).find(part) != std::string::npos;
  };
  CHECK(refused(ek_model_profile_take(model, nullptr, 0, &count), "start one first"));
  CHECK(refused(ek_model_profile_start(nullptr), "model is NULL"));
  CHECK(refused(ek_model_profile_stop(nullptr), "model is NULL"));
  CHECK(ek_model_profile_stop(model) == EK_OK);
  CHECK(ek_model_profile_start(model) == EK_OK);
  CHECK(refused(ek_model_profile_take(model, nullptr, 0, nullptr), "n_entries is NULL"));
  CHECK(refused(ek_model_profile_take(model, nullptr, 3, &count), "capacity 3"));
  ek_profile_entry entry = {};
  CHECK(refused(ek_model_profile_take(model, &entry, 1, &count), "ek_profile_entry.struct_size is 0"));
  ek_session* session = new_session(model);
  forward(model, session, 2);
  entry.struct_size = sizeof entry;
  CHECK(ek_model_profile_take(model, &entry, 1, &count) == EK_OK && count > 1 && entry.calls == 0);
  CHECK(take(model).size() == count);
  CHECK(ek_model_profile_start(model) == EK_OK && take(model).empty());
  ek_session_free(session);
  ek_model_close(model);
}

}  // namespace

int main() { return run_tests(); }
