#include "text/added_tokens.h"

#include <algorithm>
#include <utility>

namespace edge_kit {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  const auto same = [](const AddedToken& a, const AddedToken& b) { return a.content == b.content; };
  tokens_.erase(std::unique(tokens_.begin(), tokens_.end(), same), tokens_.end());
  for (const AddedToken& token : tokens_) begins_[static_cast<uint8_t>(token.content[0])] = true;
}

const AddedToken* AddedTokens::longest_at(std::string_view text) const {
  // The tokens that agree with the text so far are neighbours, those that end here before those that go on.
  auto begin = tokens_.begin(), end = tokens_.end();
  const AddedToken* longest = nullptr;
  for (size_t depth = 0; depth < text.size() && begin != end; ++depth) {
    const auto byte_of = [depth](const AddedToken& token) {
      return depth < token.content.size() ? static_cast<uint8_t>(token.content[depth]) : -1;
    };
    const int wanted = static_cast<uint8_t>(text[depth]);
    begin = std::lower_bound(begin, end, wanted,
                             [&](const AddedToken& token, int byte) { return byte_of(token) < byte; });
    end = std::upper_bound(begin, end, wanted,
                           [&](int byte, const AddedToken& token) { return byte < byte_of(token); });
    if (begin != end && begin->content.size() == depth + 1) longest = &*begin;
  }
  return longest;
}

const AddedToken* AddedTokens::find(std::string_view text, size_t from, size_t* position) const {
  if (tokens_.empty()) return nullptr;
  for (size_t at = from; at < text.size(); ++at) {
    if (!begins_[static_cast<uint8_t>(text[at])]) continue;
    const AddedToken* token = longest_at(text.substr(at));
    if (token == nullptr) continue;
    *position = at;
    return token;
  }
  return nullptr;
}

}  // namespace edge_kit
