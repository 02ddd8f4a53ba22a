// Tokens that are found in a text before it is cut into words: marks of a conversation and the like.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace edge_kit {

struct AddedToken {
  std::string content;  // UTF-8, not empty
  int32_t id;
  bool special;
};

class AddedTokens {
 public:
  static constexpr size_t kMaxBytes = 1024;  // of a token: bounds what a search costs per byte of text

  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);  // of equal contents the first one counts

  // The first token in `text` at `from` or later, the longest that begins there; null if there is none.
  const AddedToken* find(std::string_view text, size_t from, size_t* position) const;

 private:
  const AddedToken* longest_at(std::string_view text) const;

  std::vector<AddedToken> tokens_;  // sorted by content
  std::array<bool, 256> begins_{};  // whether a token begins with the byte
};

}  // namespace edge_kit
