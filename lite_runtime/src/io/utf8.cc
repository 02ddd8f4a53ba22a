#include "io/utf8.h"

namespace edge_kit {

void append_utf8(uint32_t code_point, std::string* out) {
  const auto put = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

bool is_utf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const Utf8Step step = next_utf8(bytes.data(), bytes.size());
    if (step.kind != Utf8Step::kCharacter) return false;
    bytes.remove_prefix(step.length);
  }
  return true;
}

void append_sound_utf8(std::string_view bytes, std::string* out) {
  while (!bytes.empty()) {
    const Utf8Step step = next_utf8(bytes.data(), bytes.size());
    append_utf8(step.code_point, out);
    bytes.remove_prefix(step.length);
  }
}

void Utf8Stream::add(std::string_view bytes, std::string* out) {
  held_.append(bytes);
  std::string_view rest = held_;
  while (!rest.empty()) {
    const Utf8Step step = next_utf8(rest.data(), rest.size());
    if (step.kind == Utf8Step::kUnfinished) break;
    append_utf8(step.code_point, out);
    rest.remove_prefix(step.length);
  }
  held_.erase(0, held_.size() - rest.size());
}

}  // namespace edge_kit
