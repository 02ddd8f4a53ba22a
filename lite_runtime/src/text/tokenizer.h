// Text to token ids and back: byte-level BPE, equal to what Hugging Face's tokenizers make of the same
// tokenizer.json.
//
// Immutable once made, so any number of threads may use one. It keeps nothing of the file that it was read
// from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/bundle.h"
#include "text/pre_tokenizer.h"

namespace edge_kit {

// What tokenizer.json and tokenizer_config.json say.
struct TokenizerParts {
  bool nfc = false;
  std::vector<Splitter> splitters;  // each cuts the words of the one before
  Vocabulary vocabulary;
  std::vector<Merge> merges;
  bool ignore_merges = false;  // a word that is a token is taken as it is
  std::vector<AddedToken> added;             // sought in the text as it comes
  std::vector<AddedToken> added_normalized;  // sought in the normalized text
  int32_t bos = kNoToken, eos = kNoToken;
  bool adds_bos = false;
};

// EK_ERR_NOT_SUPPORTED if the bundle has no tokenizer, or one with a part that this runtime lacks, by its name;
// EK_ERR_FORMAT if it is damaged.
TokenizerParts read_tokenizer(const Bundle& bundle);

class Tokenizer {
 public:
  static constexpr size_t kMaxTextBytes = size_t{1} << 28;

  explicit Tokenizer(TokenizerParts parts);

  // Appends the ids of `text`, at most 3 for each byte, and one. Broken UTF-8 counts as U+FFFD.
  // `bos`: one beginning-of-sequence token in front, where the model has it and the text does not begin with
  // it. `special`: special tokens that are written in the text are found; otherwise they are plain text.
  void encode(std::string_view text, bool bos, bool special, std::vector<int32_t>* ids) const;

  // Text of `ids`, broken UTF-8 replaced by U+FFFD. Ids that stand for nothing are left out, special tokens
  // on demand.
  std::string decode(const int32_t* ids, size_t n_ids, bool skip_special) const;

  std::string_view token_bytes(int64_t id) const { return parts_.vocabulary.bytes(id); }
  bool is_special(int64_t id) const;
  int32_t eos() const { return parts_.eos; }  // or kNoToken

 private:
  using Piece = void (Tokenizer::*)(std::string_view text, bool special, std::vector<int32_t>* ids) const;

  static std::array<int32_t, 256> byte_ids(const Vocabulary& vocabulary);
  // Appends added tokens as they stand in `text`, and what `piece` makes of the text between them.
  void around(const AddedTokens& tokens, std::string_view text, bool special, Piece piece,
              std::vector<int32_t>* ids) const;
  void encode_raw(std::string_view text, bool special, std::vector<int32_t>* ids) const;
  void encode_normalized(std::string_view text, bool special, std::vector<int32_t>* ids) const;

  TokenizerParts parts_;
  Bpe bpe_;
  AddedTokens added_, added_normalized_;
  std::vector<bool> is_special_;  // by id
};

}  // namespace edge_kit
