#include "engine/block_pool.h"

#include <algorithm>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace edge_kit {
namespace {

constexpr int64_t kMostBlocks = 16;  // per slab
constexpr int64_t kLargePage = int64_t{2} << 20;

void prefer_large_pages(uint8_t* begin, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  madvise(begin, static_cast<size_t>(bytes / kLargePage * kLargePage), MADV_HUGEPAGE);  // only a wish
#else
  static_cast<void>(begin);
  static_cast<void>(bytes);
#endif
}

}  // namespace

// A new slab has as many blocks as the pool so far.
std::shared_ptr<BlockPool::Slab> BlockPool::slab_with_room() {
  slabs_.erase(std::remove_if(slabs_.begin(), slabs_.end(), [](const auto& slab) { return slab.expired(); }),
               slabs_.end());
  int64_t blocks = 0;
  for (const std::weak_ptr<Slab>& one : slabs_) {
    const std::shared_ptr<Slab> slab = one.lock();
    if (!slab->free.empty()) return slab;
    blocks += slab->blocks;
  }
  const auto slab = std::make_shared<Slab>();
  slab->blocks = std::min(std::max<int64_t>(blocks, 1), kMostBlocks);
  const int64_t bytes = slab->blocks * block_bytes_;
  const bool large = bytes >= kLargePage;
  slab->memory = make_aligned<uint8_t>(large ? bytes + kLargePage : bytes);
  uint8_t* begin = slab->memory.get();
  if (large) {
    begin += -reinterpret_cast<intptr_t>(begin) & (kLargePage - 1);
    prefer_large_pages(begin, bytes);
  }
  for (int64_t i = slab->blocks; i-- > 0;) slab->free.push_back(begin + i * block_bytes_);
  slabs_.push_back(slab);
  return slab;
}

std::shared_ptr<uint8_t[]> BlockPool::take() {
  const std::shared_ptr<Slab> slab = slab_with_room();
  uint8_t* block = slab->free.back();
  slab->free.pop_back();
  // `free` has room for all blocks of the slab: giving one back cannot fail.
  return std::shared_ptr<uint8_t[]>(block, [slab](uint8_t* used) { slab->free.push_back(used); });
}

}  // namespace edge_kit
