#include "engine/block_pool.h"

#include <algorithm>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "engine/memory.h"

namespace edge_kit {
namespace {

constexpr int64_t kMostBlocks = 16;  // per slab
constexpr int64_t kMostSpare = 8;
constexpr int64_t kLargePage = int64_t{2} << 20;

void prefer_large_pages(uint8_t* begin, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  madvise(begin, static_cast<size_t>(bytes / kLargePage * kLargePage), MADV_HUGEPAGE);  // only a wish
#else
  static_cast<void>(begin);
  static_cast<void>(bytes);
#endif
}

class Slab {
 public:
  Slab(int64_t n_blocks, int64_t block_bytes)
      : bytes_(n_blocks * block_bytes),
        // With room to begin on a large page.
        memory_(make_aligned<uint8_t>(is_large() ? bytes_ + kLargePage : bytes_)),
        n_blocks_(n_blocks) {
    uint8_t* begin = memory_.get();
    if (is_large()) {
      begin += -reinterpret_cast<intptr_t>(begin) & (kLargePage - 1);
      prefer_large_pages(begin, bytes_);
    }
    for (int64_t i = n_blocks; i-- > 0;) free_.push_back(begin + i * block_bytes);
  }

  int64_t n_blocks() const { return n_blocks_; }
  bool is_full() const { return free_.empty(); }
  bool is_empty() const { return static_cast<int64_t>(free_.size()) == n_blocks_; }

  uint8_t* take() {
    uint8_t* block = free_.back();
    free_.pop_back();
    return block;
  }
  void give_back(uint8_t* block) { free_.push_back(block); }  // cannot fail: it has had room for all

 private:
  bool is_large() const { return bytes_ >= kLargePage; }

  const int64_t bytes_;
  const AlignedArray<uint8_t> memory_;
  const int64_t n_blocks_;
  std::vector<uint8_t*> free_;
};

}  // namespace

class BlockPool::Slabs {
 public:
  explicit Slabs(int64_t block_bytes) : block_bytes_(block_bytes) {}

  int64_t n_blocks() const { return n_blocks_; }

  // A slab with room. A new one has as many blocks as there are so far.
  Slab& take_from() {
    const auto has_room = [](const std::unique_ptr<Slab>& slab) { return !slab->is_full(); };
    auto slab = std::find_if(slabs_.begin(), slabs_.end(), has_room);
    if (slab == slabs_.end()) {
      const int64_t n_new = std::min(std::max<int64_t>(n_blocks_, 1), kMostBlocks);
      slabs_.push_back(std::make_unique<Slab>(n_new, block_bytes_));
      n_blocks_ += n_new;
      slab = slabs_.end() - 1;
    }
    ++n_used_;
    return **slab;
  }

  // An empty slab goes if the others have room for as many blocks as are in use, or for kMostSpare: not at
  // every session that comes and goes.
  void give_back(Slab& to, uint8_t* block) {
    to.give_back(block);
    --n_used_;
    for (auto slab = slabs_.end(); slab != slabs_.begin();) {
      --slab;
      const int64_t others = n_blocks_ - (*slab)->n_blocks();
      if (!(*slab)->is_empty() || others - n_used_ < std::min(n_used_, kMostSpare)) continue;
      n_blocks_ = others;
      slab = slabs_.erase(slab);
    }
  }

 private:
  const int64_t block_bytes_;
  int64_t n_blocks_ = 0, n_used_ = 0;
  std::vector<std::unique_ptr<Slab>> slabs_;
};

BlockPool::BlockPool(int64_t block_bytes) : slabs_(std::make_shared<Slabs>(block_bytes)) {}

int64_t BlockPool::n_blocks() const { return slabs_->n_blocks(); }

std::shared_ptr<uint8_t[]> BlockPool::take() {
  Slab& slab = slabs_->take_from();
  return std::shared_ptr<uint8_t[]>(
      slab.take(), [slabs = slabs_, &slab](uint8_t* used) { slabs->give_back(slab, used); });
}

}  // namespace edge_kit
