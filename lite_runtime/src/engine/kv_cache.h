// Keys and values of one session, in reference-counted blocks of kCacheBlock tokens.
//
// A block holds every layer: [layer][kv head][keys [kCacheBlock, dim], values [kCacheBlock, dim]], fp16 or
// fp32. Full blocks are shared between forks; the one being filled is copied before a fork writes to it.
// Threads: caches that share blocks are changed under one lock, the model's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/memory.h"
#include "kernels/kernels.h"

namespace edge_kit {

struct KvLayout {
  int64_t n_layers = 0, n_kv_heads = 0, head_dim = 0;
  int64_t element_size = 2;  // bytes: 2 = fp16, 4 = fp32

  int64_t head_bytes() const { return kCacheBlock * head_dim * element_size; }  // keys of one head
  int64_t block_bytes() const { return n_layers * n_kv_heads * 2 * head_bytes(); }
  int64_t bytes_per_token() const { return block_bytes() / kCacheBlock; }
  int64_t keys_at(int64_t layer, int64_t head) const {
    return (layer * n_kv_heads + head) * 2 * head_bytes();
  }
  int64_t values_at(int64_t layer, int64_t head) const { return keys_at(layer, head) + head_bytes(); }
};

class KvCache {
 public:
  explicit KvCache(const KvLayout& layout) : layout_(layout) {}

  int64_t length() const { return length_; }
  uint8_t* block(int64_t index) const { return blocks_[static_cast<size_t>(index)].get(); }

  // Blocks that `reserve` would allocate.
  int64_t missing_blocks(int64_t new_tokens) const;

  // Makes room for `new_tokens` past the length, writable without touching any other cache. The length and
  // what it covers stay as they are, also when memory runs out.
  void reserve(int64_t new_tokens);
  void commit(int64_t new_tokens) { length_ += new_tokens; }
  void release_unused();     // gives back blocks past the length
  void cut(int64_t length);  // keeps the first `length` tokens, 0 <= length <= length()
  KvCache fork() const { return *this; }

 private:
  bool must_copy_last() const;

  KvLayout layout_;
  int64_t length_ = 0;
  std::vector<std::shared_ptr<uint8_t[]>> blocks_;
};

}  // namespace edge_kit
