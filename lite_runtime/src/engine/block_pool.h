// Memory for the blocks of caches, some of them in one piece, so that the system can back it with large
// pages: attention over a long context then spends less on finding its pages.
//
// Threads: used, and its blocks given back, under one lock, the model's. Blocks may outlive the pool.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/memory.h"

namespace edge_kit {

class BlockPool {
 public:
  explicit BlockPool(int64_t block_bytes) : block_bytes_(block_bytes) {}

  // 64-byte aligned and uninitialized. Throws std::bad_alloc.
  std::shared_ptr<uint8_t[]> take();

 private:
  struct Slab {  // lives as long as one of its blocks is in use
    AlignedArray<uint8_t> memory;
    int64_t blocks = 0;
    std::vector<uint8_t*> free;
  };

  std::shared_ptr<Slab> slab_with_room();

  const int64_t block_bytes_;
  std::vector<std::weak_ptr<Slab>> slabs_;
};

}  // namespace edge_kit
