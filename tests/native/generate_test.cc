// Generation by the C API on a small decoder with a tokenizer of bytes.
#include <atomic>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "api/handles.h"
#include "api_cases.h"
#include "edge_kit.h"
#include "generation/generation_config.h"
#include "generation/stop_matcher.h"
#include "test.h"
#include "text/json.h"
#include "text_builder.h"
#include "toy_model.h"

using namespace edge_kit_test;

namespace {

constexpr char kPrompt[] = "hello there";
constexpr size_t kPromptBytes = sizeof kPrompt - 1;

// One session of a model whose file has these besides the tokenizer.
class Toy {
 public:
  explicit Toy(Files files = {}, int64_t n_ctx = 300) {
    static const ToyModel toy([] {
      ToyShape shape;
      shape.n_vocab = 264;  // all tokens of ToyTokenizer
      return shape;
    }());
    ModelOptions options;
    options.n_threads = 2;
    options.n_ctx = n_ctx;
    files.emplace_back("tokenizer.json", ToyTokenizer().json());
    model.reset(new ek_model{
        std::make_shared<Model>(std::make_unique<BytesFile>(zip(files)), toy.plan(), options)});
    ek_session* created = nullptr;
    CHECK(ek_session_create(model.get(), &created) == EK_OK);
    session.reset(created);
  }

  struct Close {
    void operator()(ek_model* model) const { ek_model_close(model); }
    void operator()(ek_session* session) const { ek_session_free(session); }
  };
  std::unique_ptr<ek_model, Close> model;
  std::unique_ptr<ek_session, Close> session;
};

struct Answer {
  std::string text;
  int calls = 0, most_calls = 1 << 30;
  ek_generation result = {};
  ek_status status = EK_OK;
};

int add_text(void* user, const char* text, size_t n_bytes) {
  Answer* answer = static_cast<Answer*>(user);
  CHECK(n_bytes > 0 && text[n_bytes] == '\0' && is_utf8({text, n_bytes}));
  answer->text.append(text, n_bytes);
  return ++answer->calls < answer->most_calls;
}

Answer generate(const Toy& toy, const ek_generate_options& options, int most_calls = 1 << 30,
                const char* prompt = kPrompt) {
  Answer answer;
  answer.most_calls = most_calls;
  answer.result.struct_size = sizeof answer.result;
  answer.status = ek_generate(toy.session.get(), prompt, std::string(prompt).size(), &options, add_text, &answer,
                              &answer.result);
  return answer;
}

ek_generate_options options_of(int64_t max_new_tokens) {
  ek_generate_options options = {};
  options.struct_size = sizeof options;
  options.max_new_tokens = max_new_tokens;
  return options;
}

// Greedy tokens by the calls below ek_generate.
std::vector<int32_t> greedy_tokens(const Toy& toy, size_t count) {
  std::vector<int32_t> ids(64), tokens;
  size_t n_ids = 0;
  CHECK(ek_text_encode(toy.model.get(), kPrompt, kPromptBytes, EK_TEXT_SPECIAL, ids.data(), 64, &n_ids) == EK_OK);
  ids.resize(n_ids);
  ek_session* session = nullptr;
  CHECK(ek_session_create(toy.model.get(), &session) == EK_OK);
  std::vector<float> logits(264);
  while (tokens.size() < count) {
    const ek_segment segment = {session, ids.data(), static_cast<int64_t>(ids.size()), EK_LOGITS_LAST};
    CHECK(ek_forward(toy.model.get(), &segment, 1, logits.data(), logits.size()) == EK_OK);
    ek_sampling greedy = {sizeof(ek_sampling), 0.0f, 0, 1.0f, 0.0f, 1.0f, 0};
    int32_t token = -1;
    CHECK(ek_sample(logits.data(), 264, &greedy, nullptr, 0, 0, &token) == EK_OK);
    tokens.push_back(token);
    ids.assign(1, token);
  }
  ek_session_free(session);
  return tokens;
}

std::string text_of(const Toy& toy, const std::vector<int32_t>& tokens) {
  ek_text_stream* stream = nullptr;
  CHECK(ek_text_stream_create(toy.model.get(), &stream) == EK_OK);
  std::string text;
  for (const int32_t token : tokens) {
    const char* piece = nullptr;
    CHECK(ek_text_stream_add(stream, token, &piece, nullptr) == EK_OK);
    text += piece;
  }
  ek_text_stream_free(stream);
  return text;
}

TEST(greedy_is_what_the_calls_below_give) {
  const Toy toy;
  const std::vector<int32_t> tokens = greedy_tokens(toy, 40);
  const Answer answer = generate(toy, options_of(40));
  CHECK(answer.status == EK_OK && answer.text == text_of(toy, tokens));
  CHECK(answer.result.finish_reason == EK_FINISH_LENGTH && answer.result.n_generated == 40);
  CHECK(answer.result.n_prompt == 6 && answer.result.n_cached == 0);  // hello, space, t, he, r, e
  CHECK(answer.result.last_token == tokens.back());
  CHECK(answer.result.prefill_seconds > 0 && answer.result.decode_seconds > 0);
  CHECK(ek_session_length(toy.session.get()) == 6 + 39);
}

TEST(end_tokens_and_limits_of_the_files) {
  const std::vector<int32_t> tokens = greedy_tokens(Toy(), 12);
  const std::string end = std::to_string(tokens[8]);
  const auto first = std::find(tokens.begin(), tokens.end(), tokens[8]) - tokens.begin();
  for (const Files& files : {Files{{"generation_config.json", "{\"eos_token_id\":[999," + end + "]}"}},
                             Files{{"config.json", "{\"eos_token_id\":" + end + "}"}}}) {
    const Toy toy(files);
    const Answer answer = generate(toy, options_of(12));
    CHECK(answer.result.finish_reason == EK_FINISH_STOP && answer.result.n_generated == first + 1);
    CHECK(answer.text == text_of(toy, {tokens.begin(), tokens.begin() + first}));
  }
  const Toy limited(Files{{"generation_config.json", R"({"max_new_tokens":3})"}});
  CHECK(generate(limited, options_of(0)).result.n_generated == 3);
  const Toy small({}, 9);
  const Answer full = generate(small, options_of(0));
  CHECK(full.result.finish_reason == EK_FINISH_LENGTH && full.result.n_generated == 4);
  CHECK(says(generate(small, options_of(1)).status, EK_ERR_CONTEXT_FULL, "9 are in the session, 6 are new"));
}

TEST(the_callback_and_stop_strings_end_it) {
  const Toy toy;
  const Answer two = generate(toy, options_of(40), 2);
  CHECK(two.result.finish_reason == EK_FINISH_CALLBACK && two.calls == 2);
  CHECK(ek_session_cut(toy.session.get(), 0) == EK_OK);
  const std::string whole = text_of(toy, greedy_tokens(toy, 40));
  ek_generate_options options = options_of(40);
  const std::string stop = whole.substr(4, 3);
  const char* const stops[] = {"never in it", stop.c_str()};
  options.stops = stops;
  options.n_stops = 2;
  const Answer stopped = generate(toy, options);
  CHECK(stopped.result.finish_reason == EK_FINISH_STOP && stopped.text == whole.substr(0, whole.find(stop)));
}

TEST(cancel_from_another_thread) {
  const Toy toy({}, 4000);
  std::atomic<bool> started{false};
  std::thread canceller([&] {
    while (!started.load()) std::this_thread::yield();
    ek_session_cancel(toy.session.get());
  });
  ek_generate_options options = options_of(3900);
  ek_generation result = {};
  result.struct_size = sizeof result;
  const auto start = [](void* flag, const char*, size_t) {
    static_cast<std::atomic<bool>*>(flag)->store(true);
    return 1;
  };
  CHECK(ek_generate(toy.session.get(), kPrompt, kPromptBytes, &options, start, &started, &result) == EK_OK);
  canceller.join();
  CHECK(result.finish_reason == EK_FINISH_CANCELLED && result.n_generated < 3900);
  CHECK(generate(toy, options_of(2)).result.finish_reason == EK_FINISH_LENGTH);  // it is used up
}

TEST(wrong_arguments_leave_the_session_as_it_was) {
  const Toy toy;
  ek_generate_options options = options_of(-1);
  CHECK(says(generate(toy, options).status, EK_ERR_INVALID_ARGUMENT, "max_new_tokens is -1"));
  options = options_of(1);
  options.struct_size = 1;
  CHECK(says(generate(toy, options).status, EK_ERR_INVALID_ARGUMENT, "ek_generate_options.struct_size is 1"));
  options = options_of(1);
  options.n_stops = 1;
  CHECK(says(generate(toy, options).status, EK_ERR_INVALID_ARGUMENT, "stops is NULL with n_stops 1"));
  const char* const stops[] = {""};
  options.stops = stops;
  CHECK(says(generate(toy, options).status, EK_ERR_INVALID_ARGUMENT, "stop string 0"));
  options = options_of(1);
  const ek_sampling sampling = {sizeof(ek_sampling), std::nanf(""), 0, 1.0f, 0.0f, 1.0f, 0};
  options.sampling = &sampling;
  CHECK(says(generate(toy, options).status, EK_ERR_INVALID_ARGUMENT, "temperature"));
  CHECK(says(generate(toy, options_of(1), 1, "").status, EK_ERR_INVALID_ARGUMENT, "empty"));
  CHECK(says(ek_generate(nullptr, "x", 1, nullptr, nullptr, nullptr, nullptr), EK_ERR_INVALID_ARGUMENT, "session"));
  ek_generation result = {};
  CHECK(says(ek_generate(toy.session.get(), "x", 1, nullptr, nullptr, nullptr, &result), EK_ERR_INVALID_ARGUMENT,
             "ek_generation.struct_size is 0"));
  CHECK(ek_session_length(toy.session.get()) == 0);
}

TEST(a_wrong_sampling_in_the_file_leaves_the_session_as_it_was) {
  const std::string role = R"({"before":"[","after":"]","trim":"none"})";
  const Toy toy(Files{{"generation_config.json", R"({"do_sample":true,"temperature":-1})"},
                      {"manifest.json", R"({"chat_format":{"status":"reduced","start":"","system_rule":"none",
                       "default_system":"","turns":"any","roles":{"user":)" + role + R"(,"assistant":)" + role +
                                            R"(},"thinking_end":"","end":"","generation_prompt":""}})"}});
  const ek_sampling greedy = {sizeof(ek_sampling), 0.0f, 0, 1.0f, 0.0f, 1.0f, 0};
  ek_generate_options options = options_of(1);
  options.sampling = &greedy;
  CHECK(generate(toy, options).status == EK_OK);
  const int64_t length = ek_session_length(toy.session.get());
  const ek_message message = {"user", "hello"};
  CHECK(says(ek_chat(toy.session.get(), &message, 1, nullptr, nullptr, nullptr, nullptr), EK_ERR_INVALID_ARGUMENT,
             "temperature is -1"));
  CHECK(ek_session_length(toy.session.get()) == length);
  CHECK(ek_chat(toy.session.get(), &message, 1, &options, nullptr, nullptr, nullptr) == EK_OK);
}

TEST(values_of_wrong_types_in_the_files) {
  for (const char* text : {"[]", "{", R"({"eos_token_id":"2"})", R"({"eos_token_id":[1,null]})",
                           R"({"eos_token_id":99999999999})", R"({"max_new_tokens":0})", R"({"max_new_tokens":1.5})",
                           R"({"top_k":-1})", R"({"do_sample":1})", R"({"do_sample":true,"temperature":"1"})"}) {
    const Toy toy(Files{{"generation_config.json", text}});
    CHECK_CASE(says(generate(toy, options_of(1)).status, EK_ERR_FORMAT, "toy.nb: generation_config.json"), text);
    CHECK(ek_session_length(toy.session.get()) == 0);
  }
}

TEST(context_limits) {
  const auto limit = [](const std::string& config, const std::string& manifest) {
    const std::string name = R"({"max_position_embeddings":)";
    const std::string file =
        zip({{"config.json", name + config + "}"}, {"manifest.json", name + manifest + "}"}});
    return read_context_limit(Bundle(reinterpret_cast<const uint8_t*>(file.data()), file.size(), "toy.nb"));
  };
  CHECK(limit("2048", "7") == 2048);
  CHECK(limit("100000000000000000000000000000", "7") == INT64_MAX);
  for (const char* odd : {"0", "-0", "-5", "2048.0", "2e3", "1e400", "null", "true", "\"9\"", "[9]", "{}"}) {
    CHECK_CASE(limit(odd, "7") == 7 && limit(odd, odd) == 0, odd);
  }
}

double number(const char* text) {
  const std::string label = "label";
  return Json::parse(text, label).number("value");
}

TEST(numbers) {
  const std::pair<const char*, double> cases[] = {{"0", 0.0},     {"-0.5", -0.5},    {"0.6", 0.6},
                                                  {"1e-5", 1e-5}, {"12.5E+2", 1250}, {"0.95", 0.95},
                                                  {"1e-400", 0.0}, {"-123456789.125", -123456789.125}};
  for (const auto& [text, value] : cases) CHECK_CASE(number(text) == value, text);
  bool refused = false;
  try {
    number("1e999");
  } catch (const Error& error) {
    refused = error.status() == EK_ERR_FORMAT;
  }
  CHECK(refused);
}

TEST(sampling_of_a_generation_config) {
  const auto read = [](const char* text) {
    const std::string file = zip({{"generation_config.json", text}});
    return read_generation_config(
        Bundle(reinterpret_cast<const uint8_t*>(file.data()), file.size(), "toy.nb"), 7);
  };
  const GenerationConfig drawn = read(R"({"do_sample":true,"temperature":0.6,"top_p":0.95,"top_k":20,
                                          "min_p":null,"repetition_penalty":1.1})");
  CHECK(drawn.sampling.temperature == 0.6f && drawn.sampling.top_p == 0.95f && drawn.sampling.top_k == 20);
  CHECK(drawn.sampling.min_p == 0.0f && drawn.sampling.repetition_penalty == 1.1f);
  CHECK(drawn.end_tokens == std::vector<int32_t>{7});
  CHECK(read(R"({"do_sample":true})").sampling.temperature == 1.0f);
  CHECK(read(R"({"temperature":0.6})").sampling.temperature == 0.0f);
}

// Feeds `text` in all ways to cut it in three; "shown" or "shown|" if a stop string was found.
std::string matched(const std::vector<std::string>& stops, const std::string& text) {
  std::string result;
  for (size_t a = 0; a <= text.size(); ++a) {
    for (size_t b = a; b <= text.size(); ++b) {
      StopMatcher matcher(stops);
      std::string shown;
      bool stopped = false;
      for (const std::string& piece : {text.substr(0, a), text.substr(a, b - a), text.substr(b)}) {
        stopped = stopped || matcher.add(piece, &shown);
      }
      if (!stopped) matcher.flush(&shown);
      shown += stopped ? "|" : "";
      if (a == 0 && b == 0) result = shown;
      CHECK(shown == result);
    }
  }
  return result;
}

TEST(stop_strings) {
  CHECK(matched({}, "abc") == "abc");
  CHECK(matched({"bc"}, "abcd") == "a|");
  CHECK(matched({"aab"}, "aaaab") == "aa|");
  CHECK(matched({"abx"}, "abab") == "abab");
  CHECK(matched({"zz", "c", "bcd"}, "abce") == "ab|");
}

}  // namespace

int main() { return run_tests(); }
