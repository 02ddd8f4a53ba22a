#include "text/unicode.h"

#include <algorithm>
#include <array>
#include <vector>

#include "io/utf8.h"

namespace edge_kit {
namespace {

// The Unicode standard, chapter 3.12: Hangul syllables are computed from their parts.
constexpr uint32_t kHangulSyllable = 0xAC00, kHangulL = 0x1100, kHangulV = 0x1161, kHangulT = 0x11A7;
constexpr uint32_t kCountL = 19, kCountV = 21, kCountT = 28, kSyllables = kCountL * kCountV * kCountT;
constexpr uint32_t kFirstMark = 0x300;  // below it NFC changes nothing

bool in_run(uint32_t code_point, uint32_t first, uint32_t count) {
  return code_point >= first && code_point < first + count;
}

// The entry of a table of ranges that holds the code point, or null.
template <typename Range>
const Range* find_range(const Range* ranges, size_t count, uint32_t code_point) {
  const Range* end = ranges + count;
  const Range* found = std::lower_bound(
      ranges, end, code_point, [](const Range& range, uint32_t value) { return range.last < value; });
  return found != end && found->first <= code_point ? found : nullptr;
}

CharClass look_up_class(uint32_t code_point) {
  const ClassRange* range = find_range(kClassRanges, kClassRangesCount, code_point);
  return range != nullptr ? range->kind : CharClass::kOther;
}

std::array<CharClass, 128> make_ascii_classes() {
  std::array<CharClass, 128> classes;
  for (uint32_t i = 0; i < 128; ++i) classes[i] = look_up_class(i);
  return classes;
}

uint8_t combining_class(uint32_t code_point) {
  const MarkRange* range = find_range(kMarkRanges, kMarkRangesCount, code_point);
  return range != nullptr ? range->combining_class : 0;
}

const Decomposition* find_decomposition(uint32_t code_point) {
  const Decomposition* end = kDecompositions + kDecompositionsCount;
  const Decomposition* found =
      std::lower_bound(kDecompositions, end, code_point,
                       [](const Decomposition& entry, uint32_t value) { return entry.code_point < value; });
  return found != end && found->code_point == code_point ? found : nullptr;
}

struct Composition {
  uint32_t second, first, composed;
  bool operator<(const Composition& other) const {
    return second != other.second ? second < other.second : first < other.first;
  }
};

const std::vector<Composition>& compositions() {
  static const std::vector<Composition> sorted = [] {
    std::vector<Composition> pairs;
    for (size_t i = 0; i < kDecompositionsCount; ++i) {
      const Decomposition& entry = kDecompositions[i];
      if (!entry.never_composed) pairs.push_back({entry.second, entry.first, entry.code_point});
    }
    std::sort(pairs.begin(), pairs.end());
    return pairs;
  }();
  return sorted;
}

uint32_t compose(uint32_t first, uint32_t second) {  // 0 if the two do not compose
  if (in_run(first, kHangulL, kCountL) && in_run(second, kHangulV, kCountV)) {
    return kHangulSyllable + ((first - kHangulL) * kCountV + (second - kHangulV)) * kCountT;
  }
  if (in_run(first, kHangulSyllable, kSyllables) && (first - kHangulSyllable) % kCountT == 0 &&
      in_run(second, kHangulT + 1, kCountT - 1)) {
    return first + (second - kHangulT);
  }
  const std::vector<Composition>& pairs = compositions();
  const auto found = std::lower_bound(pairs.begin(), pairs.end(), Composition{second, first, 0});
  return found != pairs.end() && found->second == second && found->first == first ? found->composed : 0;
}

// Whether the character may compose with one before it.
bool composes_backwards(uint32_t code_point) {
  if (in_run(code_point, kHangulV, kCountV) || in_run(code_point, kHangulT + 1, kCountT - 1)) return true;
  const std::vector<Composition>& pairs = compositions();
  const auto found = std::lower_bound(pairs.begin(), pairs.end(), Composition{code_point, 0, 0});
  return found != pairs.end() && found->second == code_point;
}

// False if NFC leaves every text alone that has no other characters than such.
bool may_change(uint32_t code_point) {
  return code_point >= kFirstMark && (combining_class(code_point) != 0 ||
                                      find_decomposition(code_point) != nullptr ||
                                      composes_backwards(code_point));
}

struct Character {
  uint32_t code_point;
  uint8_t combining_class;
};

void decompose(uint32_t code_point, std::vector<Character>* out) {
  if (in_run(code_point, kHangulSyllable, kSyllables)) {
    const uint32_t index = code_point - kHangulSyllable, last = index % kCountT;
    out->push_back({kHangulL + index / kCountT / kCountV, 0});
    out->push_back({kHangulV + index / kCountT % kCountV, 0});
    if (last != 0) out->push_back({kHangulT + last, 0});
    return;
  }
  const Decomposition* entry = find_decomposition(code_point);
  if (entry == nullptr) {
    out->push_back({code_point, combining_class(code_point)});
    return;
  }
  decompose(entry->first, out);
  if (entry->second != 0) decompose(entry->second, out);
}

// Canonical order: between characters of class 0, marks stand by their class.
void sort_marks(std::vector<Character>* text) {
  const auto is_starter = [](const Character& c) { return c.combining_class == 0; };
  for (auto begin = text->begin(); begin != text->end();) {
    if (is_starter(*begin)) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, text->end(), is_starter);
    std::stable_sort(begin, end, [](const Character& a, const Character& b) {
      return a.combining_class < b.combining_class;
    });
    begin = end;
  }
}

// A character joins the last one of class 0 before it if the pair composes and nothing between them has its
// class or a higher one.
void compose(std::vector<Character>* text) {
  size_t kept = 0, starter = 0;
  bool has_starter = false;
  for (const Character next : *text) {
    if (has_starter) {
      const bool adjacent = kept == starter + 1;
      const bool blocked = !adjacent && (*text)[kept - 1].combining_class >= next.combining_class;
      const uint32_t composed = blocked ? 0 : compose((*text)[starter].code_point, next.code_point);
      if (composed != 0) {
        (*text)[starter].code_point = composed;
        continue;
      }
    }
    if (next.combining_class == 0) {
      has_starter = true;
      starter = kept;
    }
    (*text)[kept++] = next;
  }
  text->resize(kept);
}

}  // namespace

CharClass char_class(uint32_t code_point) {
  static const std::array<CharClass, 128> ascii = make_ascii_classes();
  return code_point < ascii.size() ? ascii[code_point] : look_up_class(code_point);
}

std::string nfc(std::string_view text) {
  std::vector<uint32_t> code_points;
  bool changes = false;
  for (std::string_view rest = text; !rest.empty();) {
    const Utf8Step step = next_utf8(rest.data(), rest.size());
    code_points.push_back(step.code_point);
    changes = changes || may_change(step.code_point);
    rest.remove_prefix(step.length);
  }
  if (!changes) return std::string(text);

  std::vector<Character> characters;
  for (const uint32_t code_point : code_points) decompose(code_point, &characters);
  sort_marks(&characters);
  compose(&characters);
  std::string result;
  for (const Character& character : characters) append_utf8(character.code_point, &result);
  return result;
}

}  // namespace edge_kit
