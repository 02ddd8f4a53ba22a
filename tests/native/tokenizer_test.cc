// The tokenizer: that it cuts, merges and decodes as it should, that it takes and refuses the right files,
// and that no file or text makes it fail. tests/test_native_tokenizer.py holds it against Hugging Face's.
#include "text/tokenizer.h"

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "edge_kit.h"
#include "io/utf8.h"
#include "test.h"
#include "text/unicode.h"
#include "text_api.h"
#include "text_builder.h"

using namespace edge_kit_test;

namespace {

using Ids = std::vector<int32_t>;
using Words = std::vector<std::string>;

std::unique_ptr<Tokenizer> make(const Files& files) {
  const BytesFile file(zip(files));
  return std::make_unique<Tokenizer>(read_tokenizer(Bundle(file.data(), file.size(), file.path())));
}

std::unique_ptr<Tokenizer> make(const ToyTokenizer& toy, const std::string& config = "{}") {
  return make({{"tokenizer.json", toy.json()}, {"tokenizer_config.json", config}});
}

Ids encode(const Tokenizer& tokenizer, std::string_view text, bool bos = false, bool special = true) {
  Ids ids;
  tokenizer.encode(text, bos, special, &ids);
  return ids;
}

std::string decode(const Tokenizer& tokenizer, const Ids& ids, bool skip_special = false) {
  return tokenizer.decode(ids.data(), ids.size(), skip_special);
}

Words words(Splitter splitter, std::string_view text) {
  std::vector<std::string_view> found;
  split(splitter, text, &found);
  return Words(found.begin(), found.end());
}

TEST(words_of_gpt2) {
  const auto check = [](std::string_view text, const Words& expected) {
    CHECK_CASE(words(Splitter::kGpt2, text) == expected, std::string(text));
  };
  check("Hello world, it's 42!", {"Hello", " world", ",", " it", "'s", " 42", "!"});
  check("  two  spaces ", {" ", " two", " ", " spaces", " "});
  check("\t\tx \n", {"\t", "\t", "x", " \n"});
  check("we'll I'LL 'tis", {"we", "'ll", " I", "'", "LL", " '", "tis"});
  check("a\u3000\u3000\u4e00\u00bd", {"a", "\u3000", "\u3000", "\u4e00", "\u00bd"});
  check("", {});
}

TEST(words_of_qwen2_and_llama3) {
  const auto check = [](std::string_view text, const Words& expected) {
    CHECK_CASE(words(Splitter::kQwen2, text) == expected, std::string(text));
  };
  check("Hello world, it's", {"Hello", " world", ",", " it", "'s"});
  check("I'LL X'\u017f (a) \"b", {"I", "'LL", " X", "'\u017f", " (", "a", ")", " \"", "b"});
  check("(a ,b\tc\u00a0d", {"(a", " ,", "b", "\tc", "\u00a0d"});
  check("a \r\n\n  b  \n", {"a", " \r\n\n", " ", " b", "  \n"});
  check(";\n\n x = 10;", {";\n\n", " x", " =", " ", "1", "0", ";"});
  check("   ", {"   "});
  check("  7", {" ", " ", "7"});
  CHECK((words(Splitter::kLlama3, "12345 \u06617") == Words{"123", "45", " ", "\u06617"}));
}

TEST(words_of_digits) {
  CHECK((words(Splitter::kDigits, "a12 \u00bdb") == Words{"a", "1", "2", " ", "\u00bd", "b"}));
}

TEST(patterns) {
  CHECK(find_splitter(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)") ==
        Splitter::kGpt2);
  const std::string head = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})";
  const std::string tail = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  CHECK(find_splitter(head + tail) == Splitter::kQwen2);
  CHECK(find_splitter(head + "{1,3}" + tail) == Splitter::kLlama3);
  CHECK(!find_splitter(head + "{1,2}" + tail));
}

TEST(normalization) {
  const auto check = [](std::string_view text, std::string_view expected) {
    CHECK_CASE(nfc(text) == expected, std::string(text));
  };
  check("plain", "plain");
  check("e\u0301e\u0301\u0301", "\u00e9\u00e9\u0301");
  check("\u212b\u2126", "\u00c5\u03a9");
  check("a\u0315\u0300\u05ae", "\u00e0\u05ae\u0315");         // sorted, then composed
  check("\u1112\u1161\u11ab\u1100\u1161", "\ud55c\uac00");    // Hangul
  check("\uac00\u11a7\u1100\u0301\u1161", "\uac00\u11a7\u1100\u0301\u1161");
  check("\u0958", "\u0915\u093c");                            // never composed
  check("\u0301\u0300", "\u0301\u0300");
  check("\u1e0b\u0323", "\u1e0d\u0307");
  check("\u00e9\u4e00\u2000", "\u00e9\u4e00\u2002");
}

TEST(merges_by_rank_then_from_the_left) {
  ToyTokenizer toy;
  toy.merges = {{"a", "b"}, {"b", "c"}, {"b", "b"}, {"bb", "b"}, {"ab", "c"}};
  const auto tokenizer = make(toy);
  CHECK((encode(*tokenizer, "abc") == Ids{260}));
  CHECK((encode(*tokenizer, "bbbbb") == Ids{258, 259}));
  CHECK((encode(*tokenizer, "bbc") == Ids{'b', 257}));
  toy.merge_pairs = true;
  CHECK((encode(*make(toy), "abc") == Ids{260}));
  toy.merges.clear();
  CHECK((encode(*make(toy), "abc") == Ids{'a', 'b', 'c'}));
}

TEST(a_word_that_is_a_token) {
  ToyTokenizer toy;
  toy.merges = {{"b", "c"}, {"a", "b"}, {"ab", "c"}};  // the merges never make "abc"
  CHECK((encode(*make(toy), "abc") == Ids{'a', 256}));
  toy.model_options = R"("ignore_merges":true)";
  CHECK((encode(*make(toy), "abc abc") == Ids{258, ' ', 'a', 256}));
  toy.added[0] = R"("content":"zz","special":true,"normalized":false)";  // an added token is not a word
  CHECK((encode(*make(toy), "zz", false, false) == Ids{'z', 'z'}));
}

TEST(bytes_without_a_token_are_left_out) {
  std::string json = ToyTokenizer().json();
  json.replace(json.find("\"z\":122"), 3, "\"unused\"");
  CHECK((encode(*make({{"tokenizer.json", json}}), "hzello") == Ids{259}));
}

TEST(long_words_take_no_square_time) {
  ToyTokenizer toy;
  toy.merges = {{"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}, {"a", "b"}};
  const auto tokenizer = make(toy);
  const auto start = std::chrono::steady_clock::now();
  const std::string text(1000001, 'a');
  const Ids ids = encode(*tokenizer, text);
  CHECK(ids.size() == 125001 && ids[0] == 258 && ids.back() == 'a');
  CHECK(decode(*tokenizer, ids) == text);
  CHECK(encode(*tokenizer, std::string(1000000, ' ') + "\n").size() == 1000001);
  std::string marks = "a";
  for (int i = 0; i < 200000; ++i) marks += i % 2 == 0 ? "\u0315" : "\u0316";
  CHECK(nfc(marks).size() == marks.size());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  CHECK(took.count() < (kSanitized ? 60 : 10));
}

TEST(added_tokens) {
  const ToyTokenizer toy;
  const auto tokenizer = make(toy);
  const int32_t s = toy.first_added(), end = s + 1, think = s + 2;
  CHECK((encode(*tokenizer, "<s>hello</s>") == Ids{s, 259, end}));
  CHECK((encode(*tokenizer, "<think><s") == Ids{think, '<', 's'}));
  CHECK((encode(*tokenizer, "<s><think>", false, false) == Ids{'<', 's', '>', think}));
  CHECK(decode(*tokenizer, {s, 259, think, end}) == "<s>hello<think></s>");
  CHECK(decode(*tokenizer, {s, 259, think, end, -1, 100000}, true) == "hello<think>");
  CHECK(tokenizer->is_special(s) && !tokenizer->is_special(think) && !tokenizer->is_special(-1));
}

TEST(longest_added_token_and_normalized_ones) {
  ToyTokenizer toy;
  toy.normalizer = R"({"type":"Sequence","normalizers":[{"type":"NFC"}]})";
  const std::string rest = R"(,"special":false,"normalized":)";
  toy.added = {R"("content":"\u00e9x")" + rest + "true", R"("content":"<|a")" + rest + "false",
               R"("content":"<|a|>")" + rest + "false", R"("content":"<|a|>b c")" + rest + "false"};
  const auto tokenizer = make(toy);
  const int32_t first = toy.first_added();
  CHECK((encode(*tokenizer, "e\u0301x") == Ids{first}));
  CHECK((encode(*tokenizer, "<|a|>b <|a|<|a|>b c") == Ids{first + 2, 'b', ' ', first + 1, '|', first + 3}));
  CHECK(decode(*tokenizer, {first + 3}) == "<|a|>b c");
}

TEST(one_bos) {
  ToyTokenizer toy;
  const int32_t s = toy.first_added();
  const std::string bos = R"({"bos_token":{"content":"<s>"},"eos_token":"</s>")";
  const auto tokenizer = make(toy, bos + R"(,"add_bos_token":true})");
  CHECK(tokenizer->eos() == s + 1);
  CHECK((encode(*tokenizer, "hello", true) == Ids{s, 259}));
  CHECK((encode(*tokenizer, "<s>hello", true) == Ids{s, 259}));
  CHECK((encode(*tokenizer, "", true) == Ids{s}));
  CHECK((encode(*tokenizer, "hello", false) == Ids{259}));
  Ids appended = {7};
  tokenizer->encode("hello", true, true, &appended);
  CHECK((appended == Ids{7, s, 259}));

  CHECK((encode(*make(toy, bos + "}"), "hello", true) == Ids{259}));
  toy.post_processor =
      R"({"type":"Sequence","processors":[{"type":"ByteLevel"},{"type":"TemplateProcessing","single":[)"
      R"({"SpecialToken":{"id":"B","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],)"
      R"("special_tokens":{"B":{"id":"B","ids":[)" + std::to_string(s) + "]}}}]}";
  CHECK((encode(*make(toy, bos + "}"), "hello", true) == Ids{s, 259}));
  CHECK((encode(*make(toy, bos + R"(,"add_bos_token":false})"), "hello", true) == Ids{259}));
  CHECK((encode(*make(toy, "{}"), "hello", true) == Ids{259}));
  CHECK((encode(*make({{"tokenizer.json", toy.json()}}), "hello", true) == Ids{259}));
}

TEST(padding_of_a_batch_changes_no_single_text) {
  ToyTokenizer toy;
  toy.root_options = R"("padding":{"strategy":"BatchLongest","pad_to_multiple_of":null})";
  CHECK((encode(*make(toy), "hello") == Ids{259}));
}

TEST(broken_utf8_is_replaced) {
  const auto tokenizer = make(ToyTokenizer());
  const std::string broken("a\xF0\x9F\x98\xE5z\xED\xA0\x80", 9);
  const std::string sound = "a\uFFFD\uFFFDz\uFFFD\uFFFD\uFFFD";
  CHECK(encode(*tokenizer, broken) == encode(*tokenizer, sound));
  Ids ids;
  for (const char c : broken) ids.push_back(static_cast<uint8_t>(c));
  CHECK(decode(*tokenizer, ids) == sound);
}

TEST(what_a_runtime_lacks_is_named) {
  using Change = std::function<void(ToyTokenizer*)>;
  const auto check = [](const Change& change, ek_status status, const char* part) {
    ToyTokenizer toy;
    change(&toy);
    try {
      make(toy);
      CHECK_CASE(false, part);
    } catch (const Error& error) {
      const std::string message = error.what();
      const bool named = message.find(part) != std::string::npos && message.find("toy.nb: tok") == 0;
      if (!named) std::printf("  says \"%s\"\n", error.what());
      CHECK_CASE(named && error.status() == status, part);
    }
  };
  const auto lacks = [&](std::string ToyTokenizer::*part, const char* json, const char* message) {
    check([&](ToyTokenizer* toy) { toy->*part = json; }, EK_ERR_NOT_SUPPORTED, message);
  };
  const auto damaged = [&](std::string ToyTokenizer::*part, const char* json, const char* message) {
    check([&](ToyTokenizer* toy) { toy->*part = json; }, EK_ERR_FORMAT, message);
  };
  lacks(&ToyTokenizer::normalizer, R"({"type":"NFKC"})", "the normalizer NFKC");
  lacks(&ToyTokenizer::pre_tokenizer, "null", "a pre_tokenizer without ByteLevel");
  lacks(&ToyTokenizer::pre_tokenizer, R"({"type":"Metaspace"})", "the pre_tokenizer Metaspace");
  lacks(&ToyTokenizer::pre_tokenizer, R"({"type":"ByteLevel","add_prefix_space":true})", "add_prefix_space");
  lacks(&ToyTokenizer::pre_tokenizer, R"({"type":"Digits","individual_digits":false})", "Digits in groups");
  lacks(&ToyTokenizer::pre_tokenizer,
        R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]})", "Digits behind");
  lacks(&ToyTokenizer::pre_tokenizer, R"({"type":"Split","pattern":{"String":"x"}})", "a plain string");
  lacks(&ToyTokenizer::pre_tokenizer, R"({"type":"Split","pattern":{"Regex":"\\p{Han}+"}})",
        R"(the pattern "\\p{Han}+")");
  lacks(&ToyTokenizer::decoder, "null", "without a decoder");
  lacks(&ToyTokenizer::decoder, R"({"type":"Metaspace"})", "the decoder Metaspace");
  lacks(&ToyTokenizer::decoder, R"({"type":"Sequence","decoders":[{"type":"ByteLevel"},{"type":"Fuse"}]})",
        "several decoders");
  lacks(&ToyTokenizer::post_processor, R"({"type":"RobertaProcessing"})", "the post_processor Roberta");
  lacks(&ToyTokenizer::model_options, R"("byte_fallback":true)", "byte_fallback");
  lacks(&ToyTokenizer::model_options, R"("dropout":0.1)", "dropout");
  lacks(&ToyTokenizer::model_options, R"("end_of_word_suffix":"</w>")", "end_of_word_suffix");
  lacks(&ToyTokenizer::root_options, R"("truncation":{"max_length":8})", "truncation of every text");
  lacks(&ToyTokenizer::root_options, R"("padding":{"strategy":{"Fixed":8}})", "padding of every text");
  lacks(&ToyTokenizer::root_options, R"("padding":{"strategy":"BatchLongest","pad_to_multiple_of":8})",
        "padding of every text");
  check([](ToyTokenizer* toy) { toy->added[0] += R"(,"lstrip":true)"; }, EK_ERR_NOT_SUPPORTED,
        "lstrip of the added token <s>");
  check([](ToyTokenizer* toy) { toy->added[0].replace(11, 3, std::string(2000, 'x')); }, EK_ERR_NOT_SUPPORTED,
        "an added token of 2000 bytes");

  damaged(&ToyTokenizer::normalizer, "3", "normalizer is a number, expected an object");
  damaged(&ToyTokenizer::decoder, "{}", "decoder.type is null or absent, expected a string");
  damaged(&ToyTokenizer::root_options, "", "no JSON at byte");
  damaged(&ToyTokenizer::model_options, R"("vocab":{"\ud800":1})", "half a surrogate pair");
  check([](ToyTokenizer* toy) { toy->merges.push_back({"h", "e"}); }, EK_ERR_FORMAT, "the token 'he'");
  check([](ToyTokenizer* toy) { toy->added[0] = R"("content":"a","special":true,"normalized":false)"; },
        EK_ERR_FORMAT, "id 260 of the added token a, expected 97");
  check([](ToyTokenizer* toy) { toy->added[0] += R"(,"id":4194304)"; }, EK_ERR_FORMAT, "is 4194304");
  check([](ToyTokenizer* toy) { toy->added[0] += R"(,"id":1)"; }, EK_ERR_FORMAT, "expected 260");
  check([](ToyTokenizer* toy) { toy->added[1] += R"(,"id":300)"; }, EK_ERR_FORMAT, "expected 261");
  check([](ToyTokenizer* toy) { toy->added[0] += R"(,"id":1.5)"; }, EK_ERR_FORMAT, "expected an integer");
}

TEST(damaged_merges) {
  const std::string json = ToyTokenizer().json();
  const auto check = [&](const std::string& merge, const std::string& message) {
    std::string spoiled = json;
    spoiled.replace(spoiled.find("\"h e\""), 5, merge);
    REQUIRE_THROWS(make({{"tokenizer.json", spoiled}}), Error, message);
  };
  check("\"he\"", "the merge 'he' is not two tokens");
  check("\"h e x\"", "the merge 'h e x' is not two tokens");
  check("[\"h\"]", "a merge of 1 tokens");
  check("[\"h\",\"e\",\"x\"]", "a merge of 3 tokens");
  check("\"h \u4e00\"", "the token '\u4e00', which the vocabulary lacks");
  check("\"h x\"", "the token 'hx', which the vocabulary lacks");
}

// Cut anywhere, or with any byte changed, the file is read or refused: nothing else may happen.
TEST(spoiled_files) {
  ToyTokenizer toy;
  toy.normalizer = R"({"type":"NFC"})";
  const std::string config = R"({"bos_token":"<s>"})";
  const std::string whole = zip({{"tokenizer.json", toy.json()}, {"tokenizer_config.json", config}});
  const auto read = [](const std::string& bytes) {
    const std::vector<uint8_t> exact(bytes.begin(), bytes.end());  // nothing behind the end
    try {
      const Tokenizer tokenizer(read_tokenizer(Bundle(exact.data(), exact.size(), "spoiled")));
      CHECK(encode(tokenizer, "<s>hello e\u0301 42").size() > 0);
    } catch (const Error& error) {
      CHECK(error.status() == EK_ERR_FORMAT || error.status() == EK_ERR_NOT_SUPPORTED);
    }
  };
  read(whole);
  const size_t step = kSanitized ? 37 : 7;
  for (size_t length = 0; length < whole.size(); length += step) read(whole.substr(0, length));
  uint32_t random = 1;
  const auto next = [&random] { return (random = random * 1664525u + 1013904223u) >> 8; };
  for (int i = 0; i < (kSanitized ? 300 : 3000); ++i) {  // of the archive: its records lie at the end
    std::string spoiled = whole;
    const size_t tail = 300, at = whole.size() - tail + next() % tail;
    spoiled[at] = static_cast<char>(i % 3 == 0 ? 0xFF : next());
    read(spoiled);
  }
  for (int i = 0; i < (kSanitized ? 300 : 3000); ++i) {  // of the JSON, in an archive that is sound
    std::string json = toy.json();
    for (uint32_t changes = next() % 3 + 1; changes > 0; --changes) {
      const char* const pieces[] = {"{", "}", "[", "]", "\"", ",", ":", "\\", "\\u12", "9", "null", "\xFF"};
      json.replace(next() % json.size(), next() % 4, pieces[next() % 12]);
    }
    read(zip({{"tokenizer.json", json}}));
  }
}

TEST(c_api) {
  const std::string config = R"({"bos_token":"<s>","add_bos_token":true})";
  ek_model* model =
      open_with(zip({{"tokenizer.json", ToyTokenizer().json()}, {"tokenizer_config.json", config}}));
  const char* text = "hello<s>";
  int32_t ids[8] = {};
  size_t count = 0;
  CHECK(ek_text_encode(model, text, 8, 0, nullptr, 0, &count) == EK_OK && count == 4);
  CHECK(ek_text_encode(model, text, 8, 0, ids, 3, &count) == EK_OK && count == 4 && ids[0] == 0);
  CHECK(ek_text_encode(model, text, 8, 0, ids, 8, &count) == EK_OK && count == 4 && ids[0] == 259);
  CHECK(ek_text_encode(model, text, 8, EK_TEXT_BOS | EK_TEXT_SPECIAL, ids, 8, &count) == EK_OK && count == 3);
  CHECK(ids[0] == 260 && ids[1] == 259 && ids[2] == 260);
  CHECK(ek_text_encode(model, nullptr, 0, EK_TEXT_BOS, ids, 8, &count) == EK_OK && count == 1);

  char back[32] = {};
  const int32_t spelled[] = {260, 259, 0xE4, 0xBD, 261};
  CHECK(ek_text_decode(model, spelled, 5, 1, nullptr, 0, &count) == EK_OK && count == 8);
  CHECK(ek_text_decode(model, spelled, 5, 1, back, 8, &count) == EK_OK && std::string(back) == "hello\uFFFD");
  CHECK(ek_text_decode(model, spelled, 5, 0, back, 32, &count) == EK_OK);
  CHECK(std::string(back, count) == "<s>hello\uFFFD</s>");

  CHECK(says(ek_text_encode(nullptr, text, 8, 0, ids, 8, &count), EK_ERR_INVALID_ARGUMENT, "model is NULL"));
  CHECK(says(ek_text_encode(model, nullptr, 8, 0, ids, 8, &count), EK_ERR_INVALID_ARGUMENT, "text is NULL"));
  CHECK(says(ek_text_encode(model, text, 8, 4, ids, 8, &count), EK_ERR_INVALID_ARGUMENT, "flags is 4"));
  CHECK(says(ek_text_encode(model, text, 8, 0, nullptr, 8, &count), EK_ERR_INVALID_ARGUMENT, "ids is NULL"));
  CHECK(says(ek_text_encode(model, text, 8, 0, ids, 8, nullptr), EK_ERR_INVALID_ARGUMENT, "n_ids is NULL"));
  CHECK(says(ek_text_decode(model, nullptr, 1, 0, back, 8, &count), EK_ERR_INVALID_ARGUMENT, "ids is NULL"));
  CHECK(says(ek_text_decode(model, ids, 1, 0, nullptr, 8, &count), EK_ERR_INVALID_ARGUMENT, "text is NULL"));
  CHECK(says(ek_text_encode(model, text, size_t{1} << 40, 0, ids, 8, &count), EK_ERR_INVALID_ARGUMENT,
             "1099511627776 bytes to tokenize"));
  ek_model_close(model);

  model = open_with("no archive");
  CHECK(says(ek_text_encode(model, text, 8, 0, ids, 8, &count), EK_ERR_NOT_SUPPORTED,
             "toy.nb: no tokenizer.json behind the tensors"));
  ek_model_close(model);
  model = open_with(zip({{"tokenizer.json", "{"}}));
  ek_text_stream* stream = nullptr;
  CHECK(says(ek_text_stream_create(model, &stream), EK_ERR_FORMAT,
             "toy.nb: tokenizer.json: no JSON at byte 1"));
  CHECK(stream == nullptr);
  ek_model_close(model);
}

TEST(c_api_stream) {
  ek_model* model = open_with(zip({{"tokenizer.json", ToyTokenizer().json()}}));
  ek_text_stream* stream = nullptr;
  CHECK(ek_text_stream_create(model, &stream) == EK_OK);
  ek_model_close(model);
  std::string shown;
  const auto add = [&](int32_t token) {
    const char* piece = nullptr;
    size_t length = 99;
    CHECK(ek_text_stream_add(stream, token, &piece, &length) == EK_OK && std::strlen(piece) == length);
    shown += std::string("|") + piece;
  };
  for (const int32_t token : {260, 259, 0xE4, 0xBD, 0xA0, 0xE4, 0x78, -5, 300, 0xF0}) add(token);
  CHECK(shown == "||hello|||\u4F60||\uFFFDx|||");
  CHECK(ek_text_stream_reset(stream) == EK_OK);
  shown.clear();
  add('y');
  CHECK(shown == "|y");
  const char* piece = nullptr;
  CHECK(ek_text_stream_add(stream, 0, &piece, nullptr) == EK_OK && piece[0] == '\0');
  CHECK(says(ek_text_stream_add(nullptr, 1, &piece, nullptr), EK_ERR_INVALID_ARGUMENT, "stream is NULL"));
  CHECK(says(ek_text_stream_add(stream, 1, nullptr, nullptr), EK_ERR_INVALID_ARGUMENT, "text is NULL"));
  ek_text_stream_free(stream);
  ek_text_stream_free(nullptr);
}

}  // namespace

int main() { return run_tests(); }
