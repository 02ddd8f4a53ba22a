// The Unicode tables that make_unicode_tables.py generates, sorted by code point.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edge_kit {

enum class CharClass : uint8_t { kOther, kLetter, kNumber, kSpace };

struct ClassRange {
  uint32_t first, last;
  CharClass kind;
};

// Characters that canonical ordering moves.
struct MarkRange {
  uint32_t first, last;
  uint8_t combining_class;
};

struct Decomposition {
  uint32_t code_point;
  uint32_t first, second;  // second is 0 if it stands for one other character
  bool never_composed = false;
};

extern const ClassRange kClassRanges[];  // letters, numbers and white space
extern const size_t kClassRangesCount;
extern const MarkRange kMarkRanges[];
extern const size_t kMarkRangesCount;
extern const Decomposition kDecompositions[];  // canonical, one step; Hangul is computed
extern const size_t kDecompositionsCount;

}  // namespace edge_kit
