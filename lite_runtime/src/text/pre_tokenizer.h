// Cuts a text into the words that byte-pair encoding then treats one by one.
//
// There is no engine for regular expressions here: each splitter is one known pattern, written out, and finds
// what Hugging Face's tokenizers find with it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace edge_kit {

enum class Splitter {
  kGpt2,
  kQwen2,   // numbers digit by digit
  kLlama3,  // numbers in threes
  kDigits,  // each character of \p{N} alone, the rest as it is
};

// The splitter of a pattern as tokenizer.json spells it; none if the pattern is not known.
std::optional<Splitter> find_splitter(const std::string& pattern);

// Appends the words of `text`, sound UTF-8, in order: together they are the text.
void split(Splitter splitter, std::string_view text, std::vector<std::string_view>* words);

}  // namespace edge_kit
