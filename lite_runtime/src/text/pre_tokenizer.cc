#include "text/pre_tokenizer.h"

#include "io/utf8.h"
#include "text/unicode.h"

namespace edge_kit {
namespace {

// What Qwen2's and Llama 3's patterns have in common stands around the one difference.
const char* const kModernHead =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)";
const char* const kModernTail = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

bool is_newline(char c) { return c == '\r' || c == '\n'; }

// Finds the end of the match that begins at a position. Each pattern matches at every position of every text,
// so that words follow each other without gaps.
class Matcher {
 public:
  explicit Matcher(std::string_view text) : text_(text) {}

  // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  size_t gpt2(size_t begin) const {
    const size_t contraction = contraction_end(begin, false);
    if (contraction > begin) return contraction;
    const size_t word = text_[begin] == ' ' ? begin + 1 : begin;
    if (word < text_.size() && at(word).kind != CharClass::kSpace) return run_end(word, at(word).kind);
    return space_end(begin);
  }

  // (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,max_digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|
  // \s*[\r\n]+|\s+(?!\S)|\s+
  size_t modern(size_t begin, int max_digits) const {
    const size_t contraction = contraction_end(begin, true);
    if (contraction > begin) return contraction;
    const Char first = at(begin);
    if (first.kind == CharClass::kLetter) return run_end(begin, CharClass::kLetter);
    if (first.kind == CharClass::kNumber) return run_end(begin, CharClass::kNumber, max_digits);
    const size_t second = begin + first.length;
    if (!is_newline(text_[begin]) && is(second, CharClass::kLetter)) {
      return run_end(second, CharClass::kLetter);
    }
    const size_t symbols = text_[begin] == ' ' ? second : begin;
    if (is(symbols, CharClass::kOther)) {
      size_t end = run_end(symbols, CharClass::kOther);
      while (end < text_.size() && is_newline(text_[end])) ++end;
      return end;
    }
    for (size_t end = run_end(begin, CharClass::kSpace); end > begin; --end) {
      if (is_newline(text_[end - 1])) return end;
    }
    return space_end(begin);
  }

  size_t digits(size_t begin) const {
    size_t end = begin;
    while (end < text_.size() && !is(end, CharClass::kNumber)) end += at(end).length;
    return end > begin ? end : end + at(end).length;
  }

 private:
  struct Char {
    CharClass kind;
    uint32_t length;  // in bytes
  };

  Char at(size_t position) const {
    const Utf8Step step = next_utf8(text_.data() + position, text_.size() - position);
    return {char_class(step.code_point), step.length};
  }

  bool is(size_t position, CharClass kind) const {
    return position < text_.size() && at(position).kind == kind;
  }

  // X+ or X{1,max} of a class whose first member stands at `position`.
  size_t run_end(size_t position, CharClass kind, int max = -1) const {
    for (int count = 0; count != max && position < text_.size(); ++count) {
      const Char next = at(position);
      if (next.kind != kind) break;
      position += next.length;
    }
    return position;
  }

  // \s+(?!\S)|\s+: all white space, but the last character of it is left to a word that follows.
  size_t space_end(size_t begin) const {
    const size_t end = run_end(begin, CharClass::kSpace);
    if (end == text_.size()) return end;
    size_t last = end - 1;
    while (last > begin && (static_cast<uint8_t>(text_[last]) & 0xC0) == 0x80) --last;
    return last > begin ? last : end;
  }

  // 's|'t|'re|'ve|'m|'ll|'d; `begin` if there is none.
  size_t contraction_end(size_t begin, bool ignore_case) const {
    if (text_[begin] != '\'') return begin;
    const auto letter = [&](size_t position) -> char {
      if (position >= text_.size()) return '\0';
      const char c = text_[position];
      return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
    };
    const char first = letter(begin + 1), second = letter(begin + 2);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return begin + 2;
    const bool is_long = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
                         (first == 'l' && second == 'l');
    // Without regard to case, the long s (U+017F) is an s too.
    const bool is_long_s = ignore_case && first == '\xC5' && second == '\xBF';
    return is_long || is_long_s ? begin + 3 : begin;
  }

  const std::string_view text_;
};

}  // namespace

std::optional<Splitter> find_splitter(const std::string& pattern) {
  if (pattern == kGpt2Pattern) return Splitter::kGpt2;
  if (pattern == std::string(kModernHead) + R"(\p{N})" + kModernTail) return Splitter::kQwen2;
  if (pattern == std::string(kModernHead) + R"(\p{N}{1,3})" + kModernTail) return Splitter::kLlama3;
  return std::nullopt;
}

void split(Splitter splitter, std::string_view text, std::vector<std::string_view>* words) {
  const Matcher matcher(text);
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    switch (splitter) {
      case Splitter::kGpt2:
        end = matcher.gpt2(begin);
        break;
      case Splitter::kQwen2:
        end = matcher.modern(begin, 1);
        break;
      case Splitter::kLlama3:
        end = matcher.modern(begin, 3);
        break;
      case Splitter::kDigits:
        end = matcher.digits(begin);
        break;
    }
    words->push_back(text.substr(begin, end - begin));
  }
}

}  // namespace edge_kit
