// The role format of a chat: what it renders, what it refuses, and damaged or hostile ones. That it equals the
// models' templates, tests/test_chat_format.py shows.
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "test.h"
#include "text/chat_format.h"
#include "text_api.h"
#include "text_builder.h"

using namespace edge_kit_test;

namespace {

// Every piece names itself. The parts are JSON, and can be replaced.
struct ToyFormat {
  std::string status = R"("reduced")", system_rule = R"("anywhere")", turns = R"("any")";
  std::string start = R"("<s>")", end = R"("<end>")", generation_prompt = R"("<go>")";
  std::string default_system = R"("<none>")", thinking_end = R"("</think>")";
  std::string system = R"({"before":"[S:","after":"]","trim":"none"})";
  std::string user = R"({"before":"[U:","after":"]","trim":"both"})";
  std::string assistant = R"({"before":"[A:","after":"]","trim":"leading_newlines"})";
  std::string more = "";

  std::string json() const {
    return R"({"status":)" + status + R"(,"start":)" + start + R"(,"system_rule":)" + system_rule +
           R"(,"default_system":)" + default_system + R"(,"turns":)" + turns +
           R"(,"roles":{"system":)" + system + R"(,"user":)" + user + R"(,"assistant":)" + assistant +
           R"(},"thinking_end":)" + thinking_end + R"(,"end":)" + end + R"(,"generation_prompt":)" +
           generation_prompt + more + "}";
  }
  std::string manifest() const { return R"({"format":1,"chat_format":)" + json() + "}"; }
};

ChatFormat read(const std::string& manifest) {
  const std::string archive = zip({{"manifest.json", manifest}});
  const std::vector<uint8_t> exact(archive.begin(), archive.end());
  return read_chat_format(Bundle(exact.data(), exact.size(), "toy.nb"));
}

std::string render(const ToyFormat& format, const std::vector<ChatMessage>& messages, bool prompt = false) {
  return read(format.manifest()).render(messages, prompt);
}

TEST(pieces_and_content) {
  const ToyFormat format;
  CHECK(render(format, {{"user", " hi\n"}}) == "<s><none>[U:hi]<end>");
  CHECK(render(format, {{"user", ""}}, true) == "<s><none>[U:]<go>");
  CHECK(render(format, {{"user", " \u3000\u0085\x1F\t"}, {"user", "\u00A0a \u2028b\u200B\u205F"}}) ==
        "<s><none>[U:][U:a \u2028b\u200B]<end>");
  CHECK(render(format, {{"system", " be "}, {"assistant", "\n\n x\n"}}) == "<s>[S: be ][A: x\n]<end>");
  CHECK(render(format, {{"assistant", "<think>a</think>b</think>\n\nc"}}) == "<s><none>[A:c]<end>");
  CHECK(render(format, {{"assistant", "a</think>"}, {"user", "a</think>b"}}) ==
        "<s><none>[A:][U:a</think>b]<end>");
  CHECK(render(format, {{"user", "\xE4\xB8 \xFF"}}) == "<s><none>[U:\uFFFD \uFFFD]<end>");
  ToyFormat plain;
  plain.thinking_end = plain.start = plain.default_system = R"("")";
  plain.user = R"({"before":"\u0000\ud83d\ude00","after":"","trim":"none","new":1})";
  plain.more = R"(,"later":[{}])";
  CHECK(render(plain, {{"user", " {x} "}, {"assistant", "a</think>b"}}) ==
        std::string("\0", 1) + "\U0001F600 {x} [A:a</think>b]<end>");
}

TEST(system_rules) {
  ToyFormat format;
  const std::vector<ChatMessage> two = {{"user", "a"}, {"system", "b"}, {"user", "c"}, {"system", "d"}};
  const std::vector<ChatMessage> first = {{"system", "a"}, {"user", "b"}};
  CHECK(render(format, two) == "<s><none>[U:a][S:b][U:c][S:d]<end>");
  CHECK(render(format, {{"system", "a"}, {"system", "b"}}) == "<s>[S:a][S:b]<end>");
  format.system_rule = R"("last_in_front")";
  CHECK(render(format, two) == "<s>[S:d][U:a][U:c]<end>");
  CHECK(render(format, {{"user", "a"}}) == "<s><none>[U:a]<end>");
  format.system_rule = R"("first")";
  CHECK(render(format, first) == "<s>[S:a][U:b]<end>");
  REQUIRE_THROWS(render(format, two), Error, "messages[1]: a system message, which this chat format has as");
  format.system_rule = R"("none")";
  format.system = "0";
  CHECK(render(format, {{"user", "a"}}) == "<s><none>[U:a]<end>");
  REQUIRE_THROWS(render(format, first), Error, "messages[0]: this chat format has no system message");
}

TEST(turns) {
  ToyFormat format;
  CHECK(render(format, {{"assistant", "a"}, {"assistant", "b"}}) == "<s><none>[A:a][A:b]<end>");
  format.turns = R"("alternate")";
  CHECK(render(format, {{"system", "s"}, {"user", "a"}, {"system", "t"}, {"assistant", "b"}, {"user", "c"}}) ==
        "<s>[S:s][U:a][S:t][A:b][U:c]<end>");
  const auto refused = [&](const std::vector<ChatMessage>& messages, const std::string& problem) {
    REQUIRE_THROWS(render(format, messages), Error, problem);
  };
  refused({{"assistant", "a"}}, "messages[0]: the role is assistant, expected user");
  refused({{"user", "a"}, {"system", "s"}, {"user", "b"}}, "messages[2]: the role is user, expected assistant");
  refused({{"system", "s"}}, "there is no user message");
  refused({}, "there are no messages, expected at least one");
  refused({{"user", "a"}, {"tool", "b"}}, "messages[1]: the role is 'tool', expected system, user or");
  refused({{"User", "a"}}, "the role is 'User'");
  refused({{std::string_view("user\0", 5), "a"}}, "messages[0]: the role is 'user");
}

TEST(damaged_formats) {
  const auto refused = [](const std::string& manifest, const std::string& problem) {
    try {
      read(manifest);
      CHECK_CASE(false, problem);
    } catch (const Error& error) {
      CHECK_CASE(error.status() == EK_ERR_FORMAT, error.what());
      CHECK_CASE(std::string(error.what()).find("toy.nb: manifest.json" + problem) == 0, error.what());
    }
  };
  refused("", ": no JSON at byte 0");
  refused("[]", ": the manifest is a list, expected an object");
  refused(R"({"chat_format":true})", ": chat_format is a boolean, expected an object");
  refused(R"({"chat_format":{}})", ": status is null or absent, expected a string");
  refused(R"({"chat_format":{"status":"not_reduced","reason":[]}})", ": reason is a list, expected a string");
  refused(R"({"chat_format":)" + std::string(200, '[') + std::string(200, ']') + "}", ": no JSON at byte");
  refused(R"({"chat_format":)" + std::string(500000, '['), ": no JSON at byte");
  refused(std::string((1 << 20) + 1, ' '), " has 1048577 bytes, expected at most 1048576");

  // Each part in turn: of another kind, absent, an unknown word, too long.
  const std::vector<std::string ToyFormat::*> words = {&ToyFormat::status, &ToyFormat::system_rule,
                                                       &ToyFormat::turns};
  const std::vector<std::string ToyFormat::*> texts = {
      &ToyFormat::start, &ToyFormat::end, &ToyFormat::generation_prompt, &ToyFormat::default_system,
      &ToyFormat::thinking_end};
  const std::vector<std::string ToyFormat::*> roles = {&ToyFormat::system, &ToyFormat::user,
                                                       &ToyFormat::assistant};
  const auto with = [](std::string ToyFormat::*part, const std::string& value) {
    ToyFormat format;
    format.*part = value;
    return format.manifest();
  };
  const std::string longest = std::string(65536, 'x'), too_long = longest + "x";
  for (const auto part : texts) {
    read(with(part, quoted(longest)));
    refused(with(part, quoted(too_long)), ": ");
    for (const char* other : {"null", "1", "[\"\"]", "{}", "false"}) refused(with(part, other), ": ");
  }
  for (const auto part : words) {
    for (const char* other : {"null", "1", "[]", "{}", "true", "\"\"", "\"Any\"", "\"any\\u0000\""}) {
      refused(with(part, other), ": ");
    }
    refused(with(part, quoted(too_long)), ": ");
  }
  for (const auto part : roles) {
    for (const char* other : {"null", "1", "[]", "\"user\"", "{}", R"({"before":"","after":""})",
                              R"({"before":1,"after":"","trim":"none"})", R"({"before":"","trim":"none"})",
                              R"({"before":"","after":"","trim":"all"})"}) {
      refused(with(part, other), ": ");
    }
  }
}

// Whatever the bytes are: a format that renders, or one error.
TEST(spoiled_manifests) {
  const std::string whole = ToyFormat().manifest(), letters = "\"\\{}[]:,0nu \x80\xFF";
  std::mt19937 random(7);
  int sound = 0, damaged = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string spoiled = whole;
    for (uint32_t n = random() % 3 + 1; n > 0; --n) {
      const size_t at = random() % spoiled.size();
      const std::string put = random() % 2 ? "" : std::string(1, letters[random() % letters.size()]);
      spoiled.replace(at, random() % 4, put);
    }
    const std::vector<char> exact(spoiled.begin(), spoiled.end());  // so that a sanitizer sees its end
    const std::string label = "spoiled";
    try {
      const Json root = Json::parse({exact.data(), exact.size()}, label);
      ChatFormat(JsonObject(root, "root")["chat_format"]).render({{"system", "a"}, {"user", "b"}}, true);
      ++sound;
    } catch (const Error&) {
      ++damaged;
    }
  }
  CHECK(sound > 1000 && damaged > 1000);
}

TEST(c_api) {
  ek_model* model = open_with(zip({{"manifest.json", ToyFormat().manifest()}}));
  const ek_message messages[] = {{"system", "be"}, {"user", " hi "}, {"assistant", nullptr}, {nullptr, "x"}};
  const std::string expected = "<s>[S:be][U:hi]<go>";
  char text[64] = {};
  size_t size = 0;
  CHECK(ek_chat_render(model, messages, 2, 1, nullptr, 0, &size) == EK_OK && size == expected.size());
  CHECK(ek_chat_render(model, messages, 2, 1, text, size - 1, &size) == EK_OK && text[0] == 0);
  CHECK(ek_chat_render(model, messages, 2, 1, text, size, &size) == EK_OK && text == expected);
  CHECK(ek_chat_render(model, messages, 1, 0, text, 64, &size) == EK_OK);
  CHECK(std::string(text, size) == "<s>[S:be]<end>");

  const auto refused = [&](const ek_message* list, size_t count, const char* message) {
    size = 99;
    CHECK(says(ek_chat_render(model, list, count, 1, text, 64, &size), EK_ERR_INVALID_ARGUMENT, message));
    CHECK(size == 0);
  };
  refused(messages, 3, "messages[2].content is NULL");
  refused(messages + 3, 1, "messages[0].role is NULL");
  refused(nullptr, 1, "messages is NULL with n_messages 1");
  refused(nullptr, 0, "there are no messages");
  CHECK(says(ek_chat_render(nullptr, messages, 2, 1, text, 64, &size), EK_ERR_INVALID_ARGUMENT,
             "model is NULL"));
  CHECK(says(ek_chat_render(model, messages, 2, 1, nullptr, 64, &size), EK_ERR_INVALID_ARGUMENT,
             "text is NULL with capacity 64"));
  CHECK(says(ek_chat_render(model, messages, 2, 1, text, 64, nullptr), EK_ERR_INVALID_ARGUMENT,
             "n_bytes is NULL"));
  ek_model_close(model);

  const auto file_says = [&](const std::string& file, ek_status status, const char* message) {
    model = open_with(file);
    CHECK(says(ek_chat_render(model, messages, 2, 1, text, 64, &size), status, message));
    ek_model_close(model);
  };
  file_says("no archive", EK_ERR_NOT_SUPPORTED, "toy.nb: no chat format behind the tensors");
  file_says(zip({{"manifest.json", "{}"}}), EK_ERR_NOT_SUPPORTED, "render the template elsewhere");
  file_says(zip({{"manifest.json", R"({"chat_format":{"status":"not_reduced","reason":"so"}})"}}),
            EK_ERR_NOT_SUPPORTED, "could not be reduced to fixed pieces (so): render the template elsewhere");
  file_says(zip({{"manifest.json", "{"}}), EK_ERR_FORMAT, "toy.nb: manifest.json: no JSON at byte 1");
}

}  // namespace

int main() { return run_tests(); }
