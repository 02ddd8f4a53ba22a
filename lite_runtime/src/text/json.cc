#include "text/json.h"

#include <algorithm>
#include <cmath>

#include "io/utf8.h"

namespace edge_kit {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Goes through a whole text once and throws where it is no JSON.
class Checker {
 public:
  Checker(std::string_view text, const std::string& label) : text_(text), label_(label) {}

  void document() {
    skip_space();
    value(1);
    skip_space();
    if (at_ < text_.size()) fail("something behind the end of the value");
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(EK_ERR_FORMAT, label_ + ": no JSON at byte " + std::to_string(at_) + ": " + problem);
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }
  void expect(char c) {
    if (at_ == text_.size()) fail(std::string("the text ends where '") + c + "' is expected");
    if (text_[at_] != c) fail(std::string("expected '") + c + "'");
    ++at_;
  }

  void value(int depth) {
    if (depth > Json::kMaxDepth) fail("nested deeper than " + std::to_string(Json::kMaxDepth));
    switch (peek()) {
      case '{':
        return list('}', [&] {
          string();
          skip_space();
          expect(':');
          skip_space();
          value(depth + 1);
        });
      case '[':
        return list(']', [&] { value(depth + 1); });
      case '"':
        return string();
      case 't':
        return word("true");
      case 'f':
        return word("false");
      case 'n':
        return word("null");
      default:
        return number();
    }
  }

  template <typename Item>
  void list(char end, const Item& item) {
    ++at_;
    skip_space();
    if (peek() == end) {
      ++at_;
      return;
    }
    while (true) {
      item();
      skip_space();
      if (peek() != ',') break;
      ++at_;
      skip_space();
    }
    expect(end);
  }

  void word(std::string_view expected) {
    if (text_.substr(at_, expected.size()) != expected) fail("expected a value");
    at_ += expected.size();
  }

  void digits() {
    if (!is_digit(peek())) fail("expected a value");
    while (is_digit(peek())) ++at_;
  }

  void number() {
    if (peek() == '-') ++at_;
    if (peek() == '0') {
      ++at_;
    } else {
      digits();
    }
    if (peek() == '.') {
      ++at_;
      digits();
    }
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      digits();
    }
  }

  void string() {
    expect('"');
    while (true) {
      if (at_ == text_.size()) fail("a string without an end");
      const char c = text_[at_];
      if (c == '"') break;
      if (static_cast<uint8_t>(c) < 0x20) fail("a control character in a string");
      if (c == '\\') {
        escape();
        continue;
      }
      const Utf8Step step = next_utf8(text_.data() + at_, text_.size() - at_);
      if (step.kind != Utf8Step::kCharacter) fail("the text is no UTF-8");
      at_ += step.length;
    }
    ++at_;
  }

  void escape() {
    ++at_;
    const char c = peek();
    if (c != 'u') {
      if (std::string_view("\"\\/bfnrt").find(c) == std::string_view::npos || c == '\0') {
        fail("an unknown escape");
      }
      ++at_;
      return;
    }
    const unsigned first = unit();
    if (first < 0xD800 || first > 0xDFFF) return;
    const bool paired = first < 0xDC00 && text_.substr(at_, 2) == "\\u";
    if (paired) ++at_;
    const unsigned second = paired ? unit() : 0;
    if (second < 0xDC00 || second > 0xDFFF) fail("half a surrogate pair");
  }

  unsigned unit() {  // of UTF-16, behind the backslash
    ++at_;
    unsigned value = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const int digit = hex_digit(peek());
      if (digit < 0) fail("expected four hexadecimal digits");
      value = value * 16 + static_cast<unsigned>(digit);
    }
    return value;
  }

  const std::string_view text_;
  const std::string& label_;
  size_t at_ = 0;
};

// The functions below get text that was checked.

size_t string_length(std::string_view text) {
  size_t end = 1;
  while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
  return end + 1 < text.size() ? end + 1 : text.size();
}

size_t value_length(std::string_view text) {
  if (text[0] == '"') return string_length(text);
  const bool is_list = text[0] == '{' || text[0] == '[';
  int depth = 0;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"') {
      at += string_length(text.substr(at));
      continue;
    }
    if (!is_list && (c == ',' || c == ':' || c == ']' || c == '}' || is_space(c))) return at;
    depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
    ++at;
    if (is_list && depth == 0) return at;
  }
  return text.size();
}

unsigned unit_at(std::string_view text, size_t at) {
  unsigned value = 0;
  for (size_t i = at; i < at + 4 && i < text.size(); ++i) {
    value = value * 16 + static_cast<unsigned>(hex_digit(text[i]));
  }
  return value;
}

std::string unescaped(std::string_view quoted) {
  const std::string_view text = quoted.substr(1, quoted.size() - 2);
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t plain = std::min(text.find('\\', at), text.size());
    result.append(text.substr(at, plain - at));
    at = plain;
    if (at + 1 >= text.size()) break;
    const char c = text[at + 1];
    at += 2;
    if (c == 'u') {
      uint32_t code_point = unit_at(text, at);
      at += 4;
      if (code_point >= 0xD800 && code_point <= 0xDFFF) {
        code_point = 0x10000 + ((code_point - 0xD800) << 10) + (unit_at(text, at + 2) - 0xDC00);
        at += 6;
      }
      append_utf8(code_point, &result);
    } else {
      const std::string_view letters = "bfnrt";
      const size_t letter = letters.find(c);
      result.push_back(letter == std::string_view::npos ? c : "\b\f\n\r\t"[letter]);
    }
  }
  return result;
}

// Takes one value, and what stands around it, off the front of `rest`.
std::string_view take_value(std::string_view* rest) {
  const auto skip = [rest] {
    while (!rest->empty() && (is_space(rest->front()) || rest->front() == ',' || rest->front() == ':')) {
      rest->remove_prefix(1);
    }
  };
  skip();
  if (rest->empty()) return {};
  const std::string_view value = rest->substr(0, value_length(*rest));
  rest->remove_prefix(value.size());
  skip();
  return value;
}

}  // namespace

Json::Json() : text_("null"), label_(nullptr) {}

Json Json::parse(std::string_view text, const std::string& label) {
  Checker(text, label).document();
  return Json(take_value(&text), &label);
}

void Json::fail(ek_status status, const std::string& problem) const {
  throw Error(status, (label_ != nullptr ? *label_ + ": " : "") + problem);
}

void Json::require(bool is_kind, const char* what, const char* expected) const {
  if (is_kind) return;
  const char c = text_[0];
  const char* found = c == '{'               ? "an object"
                      : c == '['             ? "a list"
                      : c == '"'             ? "a string"
                      : c == 't' || c == 'f' ? "a boolean"
                      : c == 'n'             ? "null or absent"
                                             : "a number";
  fail(EK_ERR_FORMAT, std::string(what) + " is " + found + ", expected " + expected);
}

bool Json::boolean(const char* what) const {
  require(text_[0] == 't' || text_[0] == 'f', what, "true or false");
  return text_[0] == 't';
}

int64_t Json::integer(const char* what) const {
  const std::string_view digits = text_.substr(text_[0] == '-' ? 1 : 0);
  bool is_integer = digits.size() <= 18;
  int64_t value = 0;
  for (size_t i = 0; is_integer && i < digits.size(); ++i) {
    is_integer = is_digit(digits[i]);
    if (is_integer) value = value * 10 + (digits[i] - '0');
  }
  require(is_integer, what, "an integer of at most 18 digits");
  return text_[0] == '-' ? -value : value;
}

// Not strtod, which reads a decimal comma where the application's locale has one.
double Json::number(const char* what) const {
  require(is_number(), what, "a number");
  const size_t exponent_at = std::min(text_.find_first_of("eE"), text_.size());
  double digits = 0;
  int64_t exponent = 0;  // of ten
  bool in_fraction = false;
  for (const char c : text_.substr(0, exponent_at)) {
    if (c == '.') in_fraction = true;
    if (!is_digit(c)) continue;
    digits = digits * 10 + (c - '0');
    exponent -= in_fraction ? 1 : 0;
  }
  if (exponent_at < text_.size()) {
    int64_t given = 0;
    for (const char c : text_.substr(exponent_at + 1)) {
      if (is_digit(c)) given = std::min<int64_t>(given * 10 + (c - '0'), 1 << 20);
    }
    exponent += text_[exponent_at + 1] == '-' ? -given : given;
  }
  const double power = std::pow(10.0, static_cast<double>(exponent < 0 ? -exponent : exponent));
  const double value = exponent < 0 ? digits / power : digits * power;
  require(std::isfinite(value), what, "a number that a double can hold");
  return text_[0] == '-' ? -value : value;
}

std::string Json::string(const char* what) const {
  require(is_string(), what, "a string");
  return unescaped(text_);
}

void Json::each_element(const char* what, const std::function<void(const Json&)>& visit) const {
  require(is_array(), what, "a list");
  std::string_view rest = text_.substr(1, text_.size() - 2);
  while (true) {
    const std::string_view value = take_value(&rest);
    if (value.empty()) return;
    visit(Json(value, label_));
  }
}

void Json::each_member(const char* what,
                       const std::function<void(const std::string&, const Json&)>& visit) const {
  require(is_object(), what, "an object");
  std::string_view rest = text_.substr(1, text_.size() - 2);
  while (true) {
    const std::string_view name = take_value(&rest);
    if (name.empty()) return;
    visit(unescaped(name), Json(take_value(&rest), label_));
  }
}

JsonObject::JsonObject(const Json& value, const char* what) {
  absent_.label_ = value.label_;
  value.each_member(
      what, [this](const std::string& name, const Json& member) { members_.emplace_back(name, member); });
}

const Json& JsonObject::operator[](std::string_view name) const {
  for (auto member = members_.rbegin(); member != members_.rend(); ++member) {
    if (member->first == name) return member->second;
  }
  return absent_;
}

}  // namespace edge_kit
