// Memory for the blocks of caches, some of them in one piece, so that the system can back it with large
// pages: attention over a long context then spends less on finding its pages.
//
// Threads: used, and its blocks given back, under one lock, the model's. Blocks may outlive the pool.
#pragma once

#include <cstdint>
#include <memory>

namespace edge_kit {

class BlockPool {
 public:
  explicit BlockPool(int64_t block_bytes);

  // 64-byte aligned, of any content. Throws std::bad_alloc.
  std::shared_ptr<uint8_t[]> take();
  int64_t n_blocks() const;  // that it has memory for, in use or not

 private:
  class Slabs;

  std::shared_ptr<Slabs> slabs_;  // shared with the blocks in use
};

}  // namespace edge_kit
