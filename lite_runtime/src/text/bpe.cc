#include "text/bpe.h"

#include <algorithm>
#include <utility>

#include "io/utf8.h"

namespace edge_kit {
namespace {

constexpr uint32_t kAlphabetEnd = 0x144;  // 68 bytes are spelled from U+0100 on

// The byte that a character of the byte alphabet stands for; -1 for others. Printable Latin-1 stands for
// itself, the other bytes follow in order from U+0100 on.
std::array<int16_t, kAlphabetEnd> make_alphabet() {
  std::array<int16_t, kAlphabetEnd> alphabet;
  alphabet.fill(-1);
  uint32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    alphabet[printable ? static_cast<uint32_t>(byte) : next++] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

// The bytes that `token` spells, or itself if it has characters outside the byte alphabet.
std::string spelled_bytes(const std::string& token, bool* is_literal) {
  static const std::array<int16_t, kAlphabetEnd> alphabet = make_alphabet();
  std::string bytes;
  *is_literal = false;
  for (std::string_view rest = token; !rest.empty();) {
    const Utf8Step step = next_utf8(rest.data(), rest.size());
    const int byte = step.code_point < kAlphabetEnd ? alphabet[step.code_point] : -1;
    if (byte < 0) {
      *is_literal = true;
      return token;
    }
    bytes.push_back(static_cast<char>(byte));
    rest.remove_prefix(step.length);
  }
  return bytes;
}

size_t hash_of(std::string_view bytes, bool is_literal) {  // FNV-1a
  uint32_t hash = is_literal ? 0x050C5D1Fu : 0x811C9DC5u;
  for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x01000193u;
  return hash ^ hash >> 15;
}

}  // namespace

std::string_view Vocabulary::bytes(int64_t id) const {
  if (id < 0 || id >= static_cast<int64_t>(entries_.size())) return {};
  const Entry& entry = entries_[static_cast<size_t>(id)];
  return std::string_view(bytes_).substr(entry.begin, entry.length);
}

int32_t Vocabulary::find(std::string_view bytes, bool is_literal) const {
  if (slots_.empty()) return kNoToken;
  const size_t mask = slots_.size() - 1;
  for (size_t slot = hash_of(bytes, is_literal) & mask; slots_[slot] != kNoToken; slot = (slot + 1) & mask) {
    const int32_t id = slots_[slot];
    if (entries_[static_cast<size_t>(id)].is_literal == is_literal && this->bytes(id) == bytes) return id;
  }
  return kNoToken;
}

int32_t Vocabulary::find(const std::string& token) const {
  bool is_literal;
  const std::string bytes = spelled_bytes(token, &is_literal);
  return find(bytes, is_literal);
}

int32_t Vocabulary::find_word(std::string_view bytes) const {
  const int32_t id = find(bytes, false);
  return id != kNoToken && entries_[static_cast<size_t>(id)].origin == Origin::kModel ? id : kNoToken;
}

void Vocabulary::insert(int32_t id) {
  const size_t mask = slots_.size() - 1;
  size_t slot = hash_of(bytes(id), entries_[static_cast<size_t>(id)].is_literal) & mask;
  while (slots_[slot] != kNoToken) slot = (slot + 1) & mask;
  slots_[slot] = id;
}

bool Vocabulary::add(int32_t id, const std::string& token, Origin origin) {
  Entry entry;
  const std::string bytes = spelled_bytes(token, &entry.is_literal);
  const size_t index = static_cast<size_t>(id);
  if (find(bytes, entry.is_literal) != kNoToken) return false;
  if (index < entries_.size() && entries_[index].exists) return false;
  if (index >= entries_.size()) entries_.resize(index + 1);
  entry.begin = static_cast<uint32_t>(bytes_.size());
  entry.length = static_cast<uint32_t>(bytes.size());
  entry.exists = true;
  entry.origin = origin;
  entries_[index] = entry;
  bytes_ += bytes;
  ++used_;
  if (2 * used_ <= slots_.size()) {
    insert(id);
    return true;
  }
  slots_.assign(std::max<size_t>(1024, 2 * slots_.size()), kNoToken);
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].exists) insert(static_cast<int32_t>(i));
  }
  return true;
}

Bpe::Bpe(std::vector<Merge> merges, const std::array<int32_t, 256>& byte_ids, size_t n_tokens)
    : merges_(std::move(merges)), first_(n_tokens + 1), byte_ids_(byte_ids) {
  std::sort(merges_.begin(), merges_.end(), [](const Merge& a, const Merge& b) {
    if (a.left != b.left) return a.left < b.left;
    return a.right != b.right ? a.right < b.right : a.rank > b.rank;
  });
  const auto same_pair = [](const Merge& a, const Merge& b) {
    return a.left == b.left && a.right == b.right;
  };
  merges_.erase(std::unique(merges_.begin(), merges_.end(), same_pair), merges_.end());
  for (const Merge& merge : merges_) ++first_[merge.left + 1];
  for (size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
}

const Merge* Bpe::find(uint32_t left, uint32_t right) const {
  const Merge* begin = merges_.data() + first_[left];
  const Merge* end = merges_.data() + first_[left + 1];
  begin = std::lower_bound(begin, end, right, [](const Merge& m, uint32_t id) { return m.right < id; });
  return begin != end && begin->right == right ? begin : nullptr;
}

void Bpe::encode(std::string_view word, std::vector<int32_t>* ids) const {
  // A list of symbols, each linked to its neighbours. One that was merged into its left neighbour is dead.
  constexpr uint32_t kNone = UINT32_MAX;
  struct Symbol {
    uint32_t id, left, right;
  };
  struct Candidate {
    uint32_t rank, position, merged;
    bool operator<(const Candidate& other) const {  // the heap's top is the lowest rank, furthest left
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (const char c : word) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    if (id == kNoToken) continue;
    const uint32_t position = static_cast<uint32_t>(symbols.size());
    symbols.push_back({static_cast<uint32_t>(id), position - 1, position + 1});  // kNone left of the first
  }
  if (symbols.empty()) return;
  symbols.back().right = kNone;

  std::vector<Candidate> heap;
  const auto consider = [&](uint32_t position) {
    const Symbol& symbol = symbols[position];
    if (symbol.right == kNone) return;
    const Merge* merge = find(symbol.id, symbols[symbol.right].id);
    if (merge == nullptr) return;
    heap.push_back({merge->rank, position, merge->merged});
    std::push_heap(heap.begin(), heap.end());
  };
  for (uint32_t position = 0; position < symbols.size(); ++position) consider(position);
  while (!heap.empty()) {
    const Candidate best = heap.front();
    std::pop_heap(heap.begin(), heap.end());
    heap.pop_back();
    Symbol& symbol = symbols[best.position];
    if (symbol.id == kNone || symbol.right == kNone) continue;
    // The pair may have become another one since. Like Hugging Face's tokenizers this compares what they
    // merge into, not the rank.
    const Merge* merge = find(symbol.id, symbols[symbol.right].id);
    if (merge == nullptr || merge->merged != best.merged) continue;
    Symbol& gone = symbols[symbol.right];
    symbol.id = best.merged;
    symbol.right = gone.right;
    gone.id = kNone;
    if (symbol.right != kNone) symbols[symbol.right].left = best.position;
    if (symbol.left != kNone) consider(symbol.left);
    consider(best.position);
  }
  for (uint32_t position = 0; position != kNone; position = symbols[position].right) {
    ids->push_back(static_cast<int32_t>(symbols[position].id));
  }
}

}  // namespace edge_kit
