#include "text/tokenizer.h"

#include <utility>

#include "io/status.h"
#include "io/utf8.h"
#include "text/unicode.h"

namespace edge_kit {

Tokenizer::Tokenizer(TokenizerParts parts)
    : parts_(std::move(parts)),
      bpe_(std::move(parts_.merges), byte_ids(parts_.vocabulary), parts_.vocabulary.size()),
      is_special_(parts_.vocabulary.size()) {
  for (const auto* tokens : {&parts_.added, &parts_.added_normalized}) {
    for (const AddedToken& token : *tokens) {
      if (token.special) is_special_[static_cast<size_t>(token.id)] = true;
    }
  }
  added_ = AddedTokens(std::move(parts_.added));
  added_normalized_ = AddedTokens(std::move(parts_.added_normalized));
}

std::array<int32_t, 256> Tokenizer::byte_ids(const Vocabulary& vocabulary) {
  std::array<int32_t, 256> ids;
  for (size_t byte = 0; byte < ids.size(); ++byte) {
    const char c = static_cast<char>(byte);
    ids[byte] = vocabulary.find_word({&c, 1});
  }
  return ids;
}

bool Tokenizer::is_special(int64_t id) const {
  return id >= 0 && id < static_cast<int64_t>(is_special_.size()) && is_special_[static_cast<size_t>(id)];
}

void Tokenizer::encode(std::string_view text, bool bos, bool special, std::vector<int32_t>* ids) const {
  if (text.size() > kMaxTextBytes) {
    throw Error(EK_ERR_INVALID_ARGUMENT, "a text of " + std::to_string(text.size()) +
                                             " bytes to tokenize; at most " + std::to_string(kMaxTextBytes));
  }
  std::string sound;
  if (!is_utf8(text)) {
    append_sound_utf8(text, &sound);
    text = sound;
  }
  const size_t begin = ids->size();
  around(added_, text, special, &Tokenizer::encode_raw, ids);
  if (bos && parts_.adds_bos && (ids->size() == begin || (*ids)[begin] != parts_.bos)) {
    ids->insert(ids->begin() + static_cast<std::ptrdiff_t>(begin), parts_.bos);
  }
}

void Tokenizer::around(const AddedTokens& tokens, std::string_view text, bool special, Piece piece,
                       std::vector<int32_t>* ids) const {
  size_t done = 0, position = 0;
  while (const AddedToken* token = tokens.find(text, position, &position)) {
    const size_t end = position + token->content.size();
    if (special || !token->special) {
      if (position > done) (this->*piece)(text.substr(done, position - done), special, ids);
      ids->push_back(token->id);
      done = end;
    }
    position = end;
  }
  if (done < text.size()) (this->*piece)(text.substr(done), special, ids);
}

void Tokenizer::encode_raw(std::string_view text, bool special, std::vector<int32_t>* ids) const {
  if (parts_.nfc) {
    around(added_normalized_, nfc(text), special, &Tokenizer::encode_normalized, ids);
  } else {
    around(added_normalized_, text, special, &Tokenizer::encode_normalized, ids);
  }
}

void Tokenizer::encode_normalized(std::string_view text, bool, std::vector<int32_t>* ids) const {
  std::vector<std::string_view> words = {text}, cut;
  for (const Splitter splitter : parts_.splitters) {
    cut.clear();
    for (const std::string_view word : words) split(splitter, word, &cut);
    words.swap(cut);
  }
  for (const std::string_view word : words) {
    const int32_t whole = parts_.ignore_merges ? parts_.vocabulary.find_word(word) : kNoToken;
    if (whole != kNoToken) {
      ids->push_back(whole);
    } else {
      bpe_.encode(word, ids);
    }
  }
}

std::string Tokenizer::decode(const int32_t* ids, size_t n_ids, bool skip_special) const {
  std::string bytes, text;
  for (size_t i = 0; i < n_ids; ++i) {
    if (!skip_special || !is_special(ids[i])) bytes += token_bytes(ids[i]);
  }
  append_sound_utf8(bytes, &text);
  return text;
}

}  // namespace edge_kit
