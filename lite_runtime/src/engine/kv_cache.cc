#include "engine/kv_cache.h"

#include <cstring>
#include <utility>

namespace edge_kit {
namespace {

int64_t blocks_for(int64_t tokens) { return (tokens + kCacheBlock - 1) / kCacheBlock; }

std::shared_ptr<uint8_t[]> new_block(const KvLayout& layout) {
  return make_aligned<uint8_t>(layout.block_bytes());
}

}  // namespace

bool KvCache::must_copy_last() const {
  return length_ % kCacheBlock != 0 && blocks_[static_cast<size_t>(length_ / kCacheBlock)].use_count() > 1;
}

int64_t KvCache::missing_blocks(int64_t new_tokens) const {
  const int64_t fresh = blocks_for(length_ + new_tokens) - static_cast<int64_t>(blocks_.size());
  return (fresh > 0 ? fresh : 0) + (must_copy_last() ? 1 : 0);
}

void KvCache::reserve(int64_t new_tokens) {
  if (must_copy_last()) {
    std::shared_ptr<uint8_t[]>& last = blocks_[static_cast<size_t>(length_ / kCacheBlock)];
    std::shared_ptr<uint8_t[]> copy = new_block(layout_);
    std::memcpy(copy.get(), last.get(), static_cast<size_t>(layout_.block_bytes()));
    last = std::move(copy);
  }
  const size_t count = static_cast<size_t>(blocks_for(length_ + new_tokens));
  while (blocks_.size() < count) blocks_.push_back(new_block(layout_));
}

void KvCache::release_unused() { blocks_.resize(static_cast<size_t>(blocks_for(length_))); }

void KvCache::cut(int64_t length) {
  length_ = length;
  release_unused();
}

}  // namespace edge_kit
