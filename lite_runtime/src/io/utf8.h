// UTF-8, broken bytes included.
//
// A broken sequence counts as one error as far as it could still have become a character (the "maximal
// subpart" of the Unicode standard, chapter 3.9), which is how Python's decode("utf-8", "replace") and Rust's
// from_utf8_lossy count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace edge_kit {

constexpr uint32_t kReplacement = 0xFFFD;

struct Utf8Step {
  enum Kind : uint8_t {
    kCharacter,
    kBroken,
    kUnfinished,  // the bytes end inside what could become a character
  };
  uint32_t code_point;  // kReplacement unless it is a character
  uint32_t length;      // in bytes, at least 1
  Kind kind;
};

// What `data` begins with; size >= 1.
inline Utf8Step next_utf8(const char* data, size_t size) {
  const uint32_t first = static_cast<uint8_t>(data[0]);
  if (first < 0x80) return {first, 1, Utf8Step::kCharacter};
  if (first < 0xC2 || first > 0xF4) return {kReplacement, 1, Utf8Step::kBroken};
  const uint32_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  // The second byte shows overlong forms, surrogates and what lies above U+10FFFF.
  uint32_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  uint32_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  uint32_t code_point = first & (0x7Fu >> length);
  for (uint32_t i = 1; i < length; ++i, low = 0x80, high = 0xBF) {
    if (i == size) return {kReplacement, i, Utf8Step::kUnfinished};
    const uint32_t byte = static_cast<uint8_t>(data[i]);
    if (byte < low || byte > high) return {kReplacement, i, Utf8Step::kBroken};
    code_point = code_point << 6 | (byte & 0x3F);
  }
  return {code_point, length, Utf8Step::kCharacter};
}

void append_utf8(uint32_t code_point, std::string* out);

// Whether all of `bytes` is sound UTF-8.
bool is_utf8(std::string_view bytes);

// Appends `bytes` with U+FFFD in place of each broken sequence.
void append_sound_utf8(std::string_view bytes, std::string* out);

// Bytes that come in pieces: whole characters go out at once, the start of one is held until it is whole or
// broken.
class Utf8Stream {
 public:
  // Appends to `out` what became certain.
  void add(std::string_view bytes, std::string* out);
  // Forgets the start of a character.
  void reset() { held_.clear(); }

 private:
  std::string held_;  // at most 3 bytes between calls
};

}  // namespace edge_kit
