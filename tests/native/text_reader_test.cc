// What the tokenizer reads its file with: UTF-8, JSON, and the archive behind the tensors.
#include <cstring>
#include <string>
#include <vector>

#include "io/utf8.h"
#include "test.h"
#include "text/bundle.h"
#include "text/json.h"
#include "text_builder.h"

using namespace edge_kit_test;

namespace {

std::string sound(std::string_view bytes) {
  std::string text;
  append_sound_utf8(bytes, &text);
  return text;
}

TEST(broken_utf8) {
  const auto check = [](const std::string& bytes, const std::string& expected) {
    CHECK_CASE(sound(bytes) == expected, expected);
    CHECK(is_utf8(bytes) == (bytes == expected));
  };
  const std::string r = "\uFFFD";
  check("a\u00e9\u4e00\U0001F600", "a\u00e9\u4e00\U0001F600");
  check("\x80\xBF", r + r);
  check("\xC0\xAF\xC1", r + r + r);
  check("\xE4\xB8", r);
  check("\xE4\xB8z", r + "z");
  check("\xF0\x9F\x98z\xF0\x9F", r + "z" + r);
  check("\xED\xA0\x80\xED\x9F\xBF", r + r + r + "\uD7FF");
  check("\xE0\x9F\x80", r + r + r);
  check("\xF4\x8F\xBF\xBF\xF4\x90\x80\x80", "\U0010FFFF" + r + r + r + r);
  check("\xF5\xFF", r + r);
}

TEST(every_cut_of_a_stream_gives_the_same) {
  const std::string bytes = "a\u4e00\xF0\x9F\x98\u00e9\xED\xA0z\U0001F600\xE4!";
  for (size_t first = 0; first <= bytes.size(); ++first) {
    for (size_t second = first; second <= bytes.size(); ++second) {
      Utf8Stream stream;
      std::string text;
      stream.add(std::string_view(bytes).substr(0, first), &text);
      stream.add(std::string_view(bytes).substr(first, second - first), &text);
      CHECK(is_utf8(text));
      stream.add(std::string_view(bytes).substr(second), &text);
      CHECK(text == sound(bytes));
    }
  }
  Utf8Stream stream;
  std::string text;
  stream.add("\xE4\xB8", &text);
  CHECK(text.empty());
  stream.reset();
  stream.add("\x80", &text);
  CHECK(text == "\uFFFD");
}

TEST(json_values) {
  const std::string label = "label";
  const std::string text =
      " {\"a\": [1, -20, true, false, null, 1.5e-3, 0], "
      "\"s\": \"q\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\uDE00\u4e00\", "
      "\"empty\": {}, \"n\":{\"]\":\"}{\", \"x\" : [[],[{}]]}, \"a\": [7,\"\"] , \"\\u0061b\":3}\r\n";
  const JsonObject root(Json::parse(text, label), "root");
  CHECK(root["s"].string("s") == "q\"\\/\b\f\n\r\t\u00e9\U0001F600\u4e00");
  CHECK(root["ab"].integer("ab") == 3);
  CHECK(root["none"].is_null() && root["empty"].is_object() && root["a"].is_array() && root["s"].is_string());
  std::vector<std::string> found;
  root["a"].each_element("a", [&](const Json& value) { found.emplace_back(value.text()); });
  CHECK((found == std::vector<std::string>{"7", "\"\""}));  // the last of equal names
  found.clear();
  root["n"].each_member("n", [&](const std::string& name, const Json& value) {
    found.push_back(name);
    found.emplace_back(value.text());
  });
  CHECK((found == std::vector<std::string>{"]", "\"}{\"", "x", "[[],[{}]]"}));
  CHECK(Json::parse("-12", label).integer("n") == -12);
  CHECK(Json::parse("true", label).boolean("b") && !Json::parse(" false ", label).boolean("b"));
  CHECK(Json::parse("\"\\u0000\"", label).string("s") == std::string(1, '\0'));
}

TEST(json_of_another_kind) {
  const std::string label = "label";
  const auto parse = [&](const char* text) { return Json::parse(text, label); };
  REQUIRE_THROWS(parse("[1]").integer("id"), Error, "label: id is a list, expected an integer");
  REQUIRE_THROWS(parse("1.0").integer("id"), Error, "id is a number, expected an integer");
  REQUIRE_THROWS(parse("1234567890123456789").integer("id"), Error, "at most 18 digits");
  REQUIRE_THROWS(parse("1").string("s"), Error, "s is a number, expected a string");
  REQUIRE_THROWS(parse("null").boolean("b"), Error, "b is null or absent, expected true or false");
  REQUIRE_THROWS(JsonObject(parse("\"x\""), "o"), Error, "o is a string, expected an object");
  REQUIRE_THROWS(JsonObject(parse("{}"), "o")["x"].string("x"), Error, "label: x is null or absent");
}

TEST(no_json) {
  const std::string label = "label";
  const auto refused = [&](const std::string& text, const char* problem) {
    REQUIRE_THROWS(Json::parse(text, label), Error, problem);
  };
  refused("", "label: no JSON at byte 0: expected a value");
  refused("{\"a\":1,}", "at byte 7: expected '\"'");
  refused("[1,]", "expected a value");
  refused("[1 2]", "expected ']'");
  refused("[1", "the text ends where ']' is expected");
  refused("{\"a\" 1}", "expected ':'");
  refused("{1:2}", "expected '\"'");
  refused("nul", "expected a value");
  refused("01", "something behind the end");
  refused("1.", "expected a value");
  refused("-", "expected a value");
  refused("1e+", "expected a value");
  refused("\"a", "a string without an end");
  refused("\"a\\", "an unknown escape");
  refused("\"\\x\"", "an unknown escape");
  refused("\"\\u12g4\"", "four hexadecimal digits");
  refused("\"\\u12", "four hexadecimal digits");
  refused("\"\\ud800\"", "half a surrogate pair");
  refused("\"\\ud800\\n\"", "half a surrogate pair");
  refused("\"\\ud800\\ud800\"", "half a surrogate pair");
  refused("\"\\udc00\"", "half a surrogate pair");
  refused("\"\n\"", "a control character");
  refused("\"\xFF\"", "no UTF-8");
  refused("\"\xE4\xB8\"", "no UTF-8");
  refused("\xEF\xBB\xBF{}", "expected a value");
  refused("{} x", "something behind the end");
  refused(std::string("1\0", 2), "something behind the end");
  const std::string deep(Json::kMaxDepth, '[');
  refused(deep + "[", "nested deeper than 128");
  refused(std::string(1000000, '['), "nested deeper than 128");
  CHECK(Json::parse(deep + std::string(Json::kMaxDepth, ']'), label).is_array());
}

std::string read(const std::string& bytes, const std::string& name) {
  const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
  const Bundle bundle(exact.data(), exact.size(), "file");
  return bundle.contains(name) ? std::string(bundle.read(name)) : "absent";
}

TEST(archives) {
  const Files files = {
      {"a.json", "first"}, {"b/c", std::string(70000, 'x')}, {"empty", ""}, {"a.json", "last"}};
  for (int form_index = 0; form_index < 16; ++form_index) {
    ZipForm form;
    if (form_index & 1) form.before = std::string(1000, 'T');
    form.from_archive = (form_index & 2) != 0;
    form.zip64 = (form_index & 4) != 0;
    if (form_index & 8) form.comment = "a comment PK\5\6";
    const std::string bytes = zip(files, form);
    const std::string what = std::to_string(form_index);
    CHECK_CASE(read(bytes, "a.json") == "last", what);
    CHECK_CASE(read(bytes, "b/c") == files[1].second, what);
    CHECK_CASE(read(bytes, "empty").empty(), what);
    CHECK_CASE(read(bytes, "none") == "absent", what);
  }
  CHECK(read("", "x") == "absent");
  CHECK(read(std::string(100000, 'P'), "x") == "absent");
  CHECK(read(zip({}), "x") == "absent");
}

TEST(damaged_archives) {
  const std::string whole = zip({{"a.json", "content"}});
  const auto changed = [&](size_t at, const std::string& bytes) {
    std::string spoiled = whole;
    return spoiled.replace(at, bytes.size(), bytes);
  };
  const auto refused = [](const std::string& bytes, const char* problem) {
    REQUIRE_THROWS(read(bytes, "a.json"), Error, problem);
  };
  const size_t content = 30 + 6, entry = content + 7, end = entry + 46 + 6;
  REQUIRE(whole.size() == end + 22);
  refused(changed(content, "C"), "file: the archive behind the tensors is damaged: the CRC");
  refused(changed(0, "X"), "no header of a.json at byte 0");
  refused(changed(30, "X"), "no header of a.json");
  refused(changed(entry, "X"), "no directory entry at byte 43");
  refused(changed(entry + 28, "\xFF"), "runs over the end");
  refused(changed(entry + 42, "\xFF"), "a file's header needs 30 bytes from byte 255");
  refused(changed(end + 12, "\xFF"), "does not fit before its end record");
  refused(changed(end + 16, "\xFF\xFF"), "a directory of 52 bytes at offset 65535");
  const std::string size = {'\xFF', 0, 0, 0, '\xFF', 0, 0, 0};
  refused(changed(entry + 20, size), "a file needs 255 bytes");
  refused(changed(entry + 20, std::string("\0\0\0\x20\0\0\0\x20", 8)), "claims 536870912 bytes");
  ZipForm form;
  form.method = 8;
  refused(zip({{"a.json", "b"}}, form), "a.json in the archive behind the tensors is compressed");
  form.method = 0, form.flags = 1;
  refused(zip({{"a.json", "b"}}, form), "compressed or encrypted");
  form.flags = 0, form.zip64 = true;
  std::string large = zip({{"a.json", "b"}}, form);
  large.replace(large.find(std::string("\1\0\x8\0", 4)) + 2, 1, "\7");
  refused(large, "a zip64 field is too short");
}

}  // namespace

int main() { return run_tests(); }
