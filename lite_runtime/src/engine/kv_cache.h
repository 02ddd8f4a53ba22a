// Keys and values of one session, in reference-counted blocks of kCacheBlock tokens.
//
// A block holds every layer, as it is written: [layer][kv head][keys [dim, kCacheBlock], values
// [kCacheBlock, dim]], fp16 or fp32. Full blocks are shared between forks; the one being filled is copied
// before a fork writes to it.
//
// A cache of type int8 quantizes a block once it is full: [layer][kv head][keys, values], planes of
// `quantize_plane`. A token sees its own block as it was written and earlier blocks in int8. The fp16 of the
// block being filled and of the one before is kept, so that a cut inside them brings it back; a cut further
// back, inside a block, leaves that block to be filled again: `filled` is then below the length.
//
// Threads: caches that share blocks are changed under one lock, the model's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/block_pool.h"
#include "kernels/kernels.h"

namespace edge_kit {

// A session file holds these numbers.
enum class KvType { kF16 = 0, kF32 = 1, kInt8 = 2 };

struct KvLayout {
  int64_t n_layers = 0, n_kv_heads = 0, head_dim = 0;
  KvType type = KvType::kF16;

  bool is_int8() const { return type == KvType::kInt8; }
  int64_t element_size() const { return type == KvType::kF32 ? 4 : 2; }

  // A block as it is written.
  int64_t plane_bytes() const { return kCacheBlock * head_dim * element_size(); }
  int64_t block_bytes() const { return n_layers * n_kv_heads * 2 * plane_bytes(); }
  int64_t keys_at(int64_t layer, int64_t head) const {
    return (layer * n_kv_heads + head) * 2 * plane_bytes();
  }
  int64_t values_at(int64_t layer, int64_t head) const { return keys_at(layer, head) + plane_bytes(); }

  // A quantized block; planes begin on cache lines.
  int64_t int8_keys_bytes() const { return kCacheBlock * head_dim + (head_dim + 15) / 16 * 64; }
  int64_t int8_values_bytes() const { return kCacheBlock * (head_dim + 4); }
  int64_t int8_block_bytes() const {
    return n_layers * n_kv_heads * (int8_keys_bytes() + int8_values_bytes());
  }
  int64_t int8_keys_at(int64_t layer, int64_t head) const {
    return (layer * n_kv_heads + head) * (int8_keys_bytes() + int8_values_bytes());
  }
  int64_t int8_values_at(int64_t layer, int64_t head) const {
    return int8_keys_at(layer, head) + int8_keys_bytes();
  }

  int64_t bytes_per_token() const { return (is_int8() ? int8_block_bytes() : block_bytes()) / kCacheBlock; }
};

struct KvPools {
  explicit KvPools(const KvLayout& layout)
      : written(layout.block_bytes()), quantized(layout.int8_block_bytes()) {}
  BlockPool written, quantized;
};

class KvCache {
 public:
  // `pools` is borrowed, and shared by the caches of a model.
  KvCache(const KvLayout& layout, KvPools& pools) : layout_(layout), pools_(&pools) {}

  int64_t length() const { return length_; }
  int64_t filled() const { return filled_; }  // tokens of the length whose keys and values are there

  // Tokens [filled, end) are written in a forward, which keeps to this order:
  //   reserve(end); for each chunk of it, open(begin, end of the chunk) and settle(end of the chunk);
  //   then commit(end), or give_up() to leave the cache as it was.
  // Bytes that this takes at most, for chunks of up to `chunk_rows`.
  int64_t missing_bytes(int64_t end, int64_t chunk_rows) const;
  void reserve(int64_t end);
  void open(int64_t begin, int64_t end);  // makes the blocks of these tokens writable
  void settle(int64_t end);               // gives back the fp16 that a cut does not need
  void commit(int64_t end);
  void give_up();

  uint8_t* block(int64_t index) const { return blocks_[static_cast<size_t>(index)].written.get(); }
  uint8_t* int8_block(int64_t index) const { return blocks_[static_cast<size_t>(index)].quantized.get(); }

  // Of an empty cache: takes its blocks, uninitialized, as a cache of this length has them, to be read from a
  // session file. The last `n_written` blocks are there as they are written.
  void allocate(int64_t length, int64_t filled, int64_t n_written);
  int64_t n_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  int64_t n_written() const;

  void cut(int64_t length);  // keeps the first `length` tokens, 0 <= length <= length()
  KvCache fork() const { return *this; }

 private:
  struct Block {
    std::shared_ptr<uint8_t[]> written, quantized;
  };

  bool must_copy_last() const;

  KvLayout layout_;
  KvPools* pools_;
  int64_t length_ = 0, filled_ = 0;
  std::vector<Block> blocks_;
};

}  // namespace edge_kit
