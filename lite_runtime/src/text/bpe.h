// Byte-level BPE: a vocabulary of byte strings, and the pairs that merge into one, best first.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace edge_kit {

constexpr int32_t kNoToken = -1;

// Tokens by id and by text. tokenizer.json spells a token's bytes in printable characters (the byte alphabet
// of GPT-2). A token with other characters than these is an added one and stands for its own UTF-8.
class Vocabulary {
 public:
  static constexpr int64_t kMaxTokens = int64_t{1} << 22;

  enum class Origin : uint8_t { kModel, kAdded };

  // False if the id or the token is there already. 0 <= id < kMaxTokens.
  bool add(int32_t id, const std::string& token, Origin origin);

  int32_t find(const std::string& token) const;      // as tokenizer.json spells it, or kNoToken
  int32_t find_word(std::string_view bytes) const;   // among the model's own tokens, by its bytes
  std::string_view bytes(int64_t id) const;          // empty for an id that stands for nothing
  size_t size() const { return entries_.size(); }    // the largest id, and 1

 private:
  struct Entry {
    uint32_t begin = 0, length = 0;  // in bytes_
    bool exists = false, is_literal = false;
    Origin origin = Origin::kModel;
  };

  int32_t find(std::string_view bytes, bool is_literal) const;
  void insert(int32_t id);

  std::string bytes_;
  std::vector<Entry> entries_;   // by id
  std::vector<int32_t> slots_;   // hash table of ids with open addressing; at most half of it is used
  size_t used_ = 0;
};

struct Merge {
  uint32_t left, right;  // ids
  uint32_t rank;         // lower ranks merge first
  uint32_t merged;       // id
};

class Bpe {
 public:
  // Of merges of the same pair the last one counts. `byte_ids`: the token of each byte, kNoToken where there
  // is none; such bytes are left out. All ids are below n_tokens.
  Bpe(std::vector<Merge> merges, const std::array<int32_t, 256>& byte_ids, size_t n_tokens);

  // Appends the tokens of one word, in O(n log n).
  void encode(std::string_view word, std::vector<int32_t>* ids) const;

 private:
  const Merge* find(uint32_t left, uint32_t right) const;

  std::vector<Merge> merges_;     // by left, then right
  std::vector<uint32_t> first_;   // [n_tokens + 1]: where the merges of a left token begin
  std::array<int32_t, 256> byte_ids_;
};

}  // namespace edge_kit
