// The C API as a program in C would use and misuse it.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "api/handles.h"
#include "api_cases.h"
#include "edge_kit.h"
#include "test.h"
#include "toy_model.h"

using namespace edge_kit_test;

namespace {

const ToyModel& toy() {
  static const ToyModel model;
  return model;
}

ek_model* open_toy(int n_threads = 2, int64_t n_ctx = 0) {
  ModelOptions options;
  options.n_threads = n_threads;
  options.n_ctx = n_ctx;
  return new ek_model{toy().open(options)};
}

ek_session* new_session(ek_model* model) {
  ek_session* session = nullptr;
  CHECK(ek_session_create(model, &session) == EK_OK);
  return session;
}

bool invalid(ek_status status, const std::string& part) {
  return says(status, EK_ERR_INVALID_ARGUMENT, part);
}

TEST(versions) {
  CHECK(ek_abi_version() == EK_ABI_VERSION);
  CHECK(std::strlen(ek_version()) > 0);
  CHECK(ek_isa_name(0) != nullptr);
  CHECK(ek_isa_name(-1) == nullptr && ek_isa_name(100) == nullptr);
  int32_t count = 0;
  while (ek_isa_name(count) != nullptr) ++count;
  CHECK(std::string(ek_isa_name(count - 1)) == "scalar");
}

TEST(open_errors) {
  ek_model* model = reinterpret_cast<ek_model*>(1);
  CHECK(says(ek_model_open("/nonexistent/x.nb", nullptr, &model), EK_ERR_IO, "/nonexistent/x.nb"));
  CHECK(model == nullptr);
  CHECK(invalid(ek_model_open(nullptr, nullptr, &model), "path is NULL"));
  CHECK(invalid(ek_model_open("x", nullptr, nullptr), "model is NULL"));
  const char garbage[] = "this is not a model";
  CHECK(says(ek_model_open_memory(garbage, sizeof garbage, nullptr, &model), EK_ERR_FORMAT, "memory"));
  CHECK(invalid(ek_model_open_memory(nullptr, 5, nullptr, &model), "data is NULL"));
  ek_options options = {};
  CHECK(invalid(ek_model_open("x", &options, &model), "ek_options.struct_size is 0"));
  options.struct_size = sizeof options;
  options.mode = 7;
  CHECK(invalid(ek_model_open("x", &options, &model), "mode is 7"));
  options.mode = EK_MODE_EXACT;
  options.kv_dtype = 3;
  CHECK(invalid(ek_model_open("x", &options, &model), "kv_dtype is 3"));
  ek_model_close(nullptr);
  ek_session_free(nullptr);
  ek_session_cancel(nullptr);
  CHECK(ek_session_length(nullptr) == 0);
}

TEST(info) {
  ek_model* model = open_toy(2, 500);
  ek_model_info info = {};
  CHECK(invalid(ek_model_get_info(model, &info), "ek_model_info.struct_size is 0"));
  CHECK(invalid(ek_model_get_info(model, nullptr), "info is NULL"));
  CHECK(invalid(ek_model_get_info(nullptr, &info), "model is NULL"));
  info.struct_size = sizeof info;
  CHECK(ek_model_get_info(model, &info) == EK_OK);
  CHECK(info.n_threads == 2 && info.n_ctx == 500 && info.n_vocab == 203 && info.n_layers == 2);
  CHECK(info.hidden_size == 96 && info.n_heads == 4 && info.n_kv_heads == 2 && info.head_dim == 24);
  CHECK(info.kv_bytes_per_token == 2 * 2 * 24 * 2 * 2);  // layers, heads, dim, keys and values, bytes
  CHECK(std::string(info.isa) == ek_isa_name(0) || std::getenv("EDGE_KIT_ISA") != nullptr);
  double speed = 0.0;
  CHECK(invalid(ek_model_read_bandwidth(model, &speed), "no file"));
  CHECK(invalid(ek_model_read_bandwidth(model, nullptr), "bytes_per_second is NULL"));
  ek_model_close(model);

  const std::vector<uint8_t> memory(size_t{1} << 20, 1);
  CHECK(ek_read_bandwidth(memory.data(), memory.size(), 2, &speed) == EK_OK && speed > 0);
  CHECK(invalid(ek_read_bandwidth(memory.data(), 4095, 1, &speed), "4095 bytes is too small"));
  CHECK(invalid(ek_read_bandwidth(memory.data(), memory.size(), -1, &speed), "n_threads is -1"));
  CHECK(invalid(ek_read_bandwidth(nullptr, 4096, 1, &speed), "data is NULL"));
}

TEST(forward) {
  ek_model* model = open_toy();
  ek_session *a = new_session(model), *b = new_session(model);
  const int32_t ids[] = {5, 17, 202, 0, 9};
  std::vector<float> logits(5 * 203), again(203), last(2 * 203);
  ek_segment all = {a, ids, 5, EK_LOGITS_ALL};
  CHECK(ek_forward(model, &all, 1, logits.data(), logits.size()) == EK_OK);
  CHECK(ek_session_length(a) == 5);

  CHECK(ek_session_cut(a, 4) == EK_OK);
  ek_session* c = nullptr;
  CHECK(ek_session_fork(a, &c) == EK_OK);
  CHECK(ek_session_length(c) == 4);
  const ek_segment both[] = {{b, ids, 5, EK_LOGITS_LAST}, {c, ids + 4, 1, EK_LOGITS_LAST}};
  CHECK(ek_forward(model, both, 2, last.data(), last.size()) == EK_OK);
  CHECK(std::memcmp(last.data(), logits.data() + 4 * 203, 203 * sizeof(float)) == 0);
  CHECK(std::memcmp(last.data() + 203, logits.data() + 4 * 203, 203 * sizeof(float)) == 0);
  const ek_segment none = {a, ids + 4, 1, EK_LOGITS_NONE};
  CHECK(ek_forward(model, &none, 1, nullptr, 0) == EK_OK);
  CHECK(ek_session_length(a) == 5);

  ek_sampling sampling = {};
  sampling.struct_size = sizeof sampling;
  sampling.top_p = sampling.repetition_penalty = 1.0f;
  int32_t token = -1;
  CHECK(ek_sample(last.data(), 203, &sampling, nullptr, 0, 5, &token) == EK_OK);
  CHECK(token >= 0 && token < 203);
  for (int i = 0; i < 203; ++i) CHECK(last[static_cast<size_t>(i)] <= last[static_cast<size_t>(token)]);
  for (ek_session* session : {a, b, c}) ek_session_free(session);
  ek_model_close(model);
}

TEST(forward_misuse) {
  ek_model *model = open_toy(1, 20), *other = open_toy(1);
  ek_session *a = new_session(model), *b = new_session(model), *foreign = new_session(other);
  const int32_t ids[30] = {1, 2, 3}, bad[] = {1, 203}, negative[] = {-1};
  std::vector<float> logits(2 * 203);
  const auto run = [&](const std::vector<ek_segment>& segments, size_t room) {
    return ek_forward(model, segments.data(), segments.size(), logits.data(), room);
  };
  CHECK(invalid(ek_forward(nullptr, nullptr, 0, nullptr, 0), "model is NULL"));
  CHECK(invalid(ek_forward(model, nullptr, 1, logits.data(), 203), "segments is NULL"));
  const ek_segment good = {a, ids, 3, EK_LOGITS_LAST};
  CHECK(invalid(ek_forward(model, &good, 0, logits.data(), 203), "n_segments is 0"));
  CHECK(invalid(ek_forward(model, &good, 1, nullptr, 203), "1 rows of 203 floats, n_logits is 0"));
  CHECK(invalid(run({good}, 202), "1 rows of 203 floats, n_logits is 202"));
  CHECK(invalid(run({{nullptr, ids, 3, 1}}, 203), "segment 0 has no session"));
  CHECK(invalid(run({good, {foreign, ids, 3, 0}}, 203), "segment 1: the session belongs to another model"));
  CHECK(invalid(run({good, {a, ids, 3, 0}}, 203), "twice"));
  CHECK(invalid(run({good, {b, ids, 0, 0}}, 203), "segment 1 has 0 ids"));
  CHECK(invalid(run({good, {b, nullptr, 1, 0}}, 203), "ids is NULL"));
  CHECK(invalid(run({good, {b, ids, 1, 9}}, 203), "logits is 9"));
  CHECK(invalid(run({good, {b, bad, 2, 0}}, 203), "id 203 at index 1 is outside the vocabulary of 203"));
  CHECK(invalid(run({good, {b, negative, 1, 0}}, 203), "id -1 at index 0"));
  CHECK(says(run({good, {b, ids, 21, 0}}, 203), EK_ERR_CONTEXT_FULL, "need 21, the limit n_ctx is 20"));
  CHECK(says(run({good, {b, ids, INT64_MAX, 0}}, 203), EK_ERR_CONTEXT_FULL, "limit n_ctx is 20"));
  ek_session_cancel(b);
  CHECK(says(run({good, {b, ids, 1, 0}}, 203), EK_ERR_CANCELLED, "cancelled"));
  CHECK(ek_session_length(a) == 0 && ek_session_length(b) == 0);
  CHECK(run({good, {b, ids, 20, 0}}, 203) == EK_OK);
  CHECK(ek_session_length(a) == 3 && ek_session_length(b) == 20);
  CHECK(invalid(ek_session_cut(a, 4), "3 tokens to 4"));
  CHECK(invalid(ek_session_cut(nullptr, 0), "session is NULL"));
  CHECK(invalid(ek_session_fork(a, nullptr), "fork is NULL"));
  ek_session_free(b);
  CHECK(invalid(ek_session_create(nullptr, &b), "model is NULL"));
  CHECK(b == nullptr);
  ek_session_free(a);
  ek_session_free(foreign);
  ek_model_close(model);
  ek_model_close(other);
}

TEST(close_before_sessions) {
  ek_model* model = open_toy();
  ek_session *session = new_session(model), *fork = nullptr;
  ek_model_close(model);
  CHECK(ek_session_length(session) == 0);
  CHECK(invalid(ek_session_cut(session, 0), "closed"));
  CHECK(invalid(ek_session_fork(session, &fork), "closed"));
  CHECK(fork == nullptr);
  ek_session_free(session);
}

TEST(forked_process) {
  ek_model* model = open_toy();
  ek_session* session = new_session(model);
  const int32_t id = 1;
  const ek_segment segment = {session, &id, 1, EK_LOGITS_NONE};
  CHECK(ek_forward(model, &segment, 1, nullptr, 0) == EK_OK);
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);  // what waits for the parent's threads waits forever
    ek_session* other = nullptr;
    const bool refused = invalid(ek_forward(model, &segment, 1, nullptr, 0), "before this process was forked") &&
                         invalid(ek_session_cut(session, 0), "forked") &&
                         invalid(ek_session_fork(session, &other), "forked") &&
                         invalid(ek_session_save(session, "never-written"), "forked");
    ek_session_free(session);
    ek_model_close(model);
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(ek_forward(model, &segment, 1, nullptr, 0) == EK_OK);
  CHECK(ek_session_length(session) == 2);
  ek_session_free(session);
  ek_model_close(model);
}

TEST(sample_misuse) {
  const float logits[] = {0.0f, 1.0f};
  ek_sampling sampling = {};
  int32_t token = 0;
  CHECK(invalid(ek_sample(logits, 2, &sampling, nullptr, 0, 0, &token), "ek_sampling.struct_size is 0"));
  sampling.struct_size = sizeof sampling;
  CHECK(invalid(ek_sample(nullptr, 2, &sampling, nullptr, 0, 0, &token), "logits is NULL"));
  CHECK(invalid(ek_sample(logits, 2, nullptr, nullptr, 0, 0, &token), "sampling is NULL"));
  CHECK(invalid(ek_sample(logits, 2, &sampling, nullptr, 0, 0, nullptr), "token is NULL"));
  CHECK(invalid(ek_sample(logits, 0, &sampling, nullptr, 0, 0, &token), "n_vocab is 0"));
  CHECK(invalid(ek_sample(logits, 2, &sampling, nullptr, 3, 0, &token), "history is NULL"));
  CHECK(invalid(ek_sample(logits, 2, &sampling, &token, -1, 0, &token), "n_history is -1"));
  CHECK(invalid(ek_sample(logits, 2, &sampling, nullptr, 0, 0, &token), "repetition_penalty is 0"));
}

TEST(messages_per_thread) {
  CHECK(invalid(ek_session_cut(nullptr, 0), "session is NULL"));
  std::string elsewhere;
  std::thread other([&] {
    elsewhere = ek_last_error();
    ek_session_fork(nullptr, nullptr);
  });
  other.join();
  CHECK(elsewhere.empty());
  CHECK(std::string(ek_last_error()) == "session is NULL");
}

}  // namespace

int main() { return run_tests(); }
