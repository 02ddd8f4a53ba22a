#include "engine/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace edge_kit {
namespace {

int64_t blocks_for(int64_t tokens) { return (tokens + kCacheBlock - 1) / kCacheBlock; }

}  // namespace

bool KvCache::must_copy_last() const {
  return filled_ % kCacheBlock != 0 &&
         blocks_[static_cast<size_t>(filled_ / kCacheBlock)].written.use_count() > 1;
}

int64_t KvCache::missing_bytes(int64_t end, int64_t chunk_rows) const {
  const int64_t fresh = blocks_for(end) - blocks_for(filled_), copies = must_copy_last() ? 1 : 0;
  if (!layout_.is_int8()) return (fresh + copies) * layout_.block_bytes();
  // A chunk's blocks and the two before it.
  const int64_t at_once = std::min(fresh, blocks_for(chunk_rows) + 2);
  return (at_once + copies) * layout_.block_bytes() +
         (end / kCacheBlock - filled_ / kCacheBlock) * layout_.int8_block_bytes();
}

void KvCache::reserve(int64_t end) {
  if (must_copy_last()) {
    std::shared_ptr<uint8_t[]>& last = blocks_[static_cast<size_t>(filled_ / kCacheBlock)].written;
    std::shared_ptr<uint8_t[]> copy = pools_->written.take();
    std::memcpy(copy.get(), last.get(), static_cast<size_t>(layout_.block_bytes()));
    last = std::move(copy);
  }
  blocks_.resize(static_cast<size_t>(blocks_for(end)));
  if (layout_.is_int8()) {
    for (int64_t b = filled_ / kCacheBlock; b < end / kCacheBlock; ++b) {
      blocks_[static_cast<size_t>(b)].quantized = pools_->quantized.take();
    }
  } else {
    open(filled_, end);
  }
}

void KvCache::open(int64_t begin, int64_t end) {
  for (int64_t b = begin / kCacheBlock; b < blocks_for(end); ++b) {
    std::shared_ptr<uint8_t[]>& written = blocks_[static_cast<size_t>(b)].written;
    if (written == nullptr) written = pools_->written.take();
  }
}

// Kept is what the committed tokens or the first `end` ones need.
void KvCache::settle(int64_t end) {
  if (!layout_.is_int8()) return;
  const int64_t first_kept = filled_ / kCacheBlock - 1, kept_to = blocks_for(filled_);
  for (int64_t b = 0; b < end / kCacheBlock - 1; ++b) {
    if (b < first_kept || b >= kept_to) blocks_[static_cast<size_t>(b)].written.reset();
  }
}

void KvCache::commit(int64_t end) {
  length_ = filled_ = end;
  settle(end);
}

void KvCache::give_up() {
  blocks_.resize(static_cast<size_t>(blocks_for(filled_)));
  if (filled_ % kCacheBlock != 0) blocks_.back().quantized.reset();
}

void KvCache::allocate(int64_t length, int64_t filled, int64_t n_written) {
  blocks_.resize(static_cast<size_t>(blocks_for(filled)));
  for (int64_t b = n_blocks() - n_written; b < n_blocks(); ++b) {
    blocks_[static_cast<size_t>(b)].written = pools_->written.take();
  }
  for (int64_t b = 0; layout_.is_int8() && b < filled / kCacheBlock; ++b) {
    blocks_[static_cast<size_t>(b)].quantized = pools_->quantized.take();
  }
  length_ = length;
  filled_ = filled;
}

int64_t KvCache::n_written() const {
  const auto dropped = std::find_if(blocks_.rbegin(), blocks_.rend(),
                                    [](const Block& block) { return block.written == nullptr; });
  return dropped - blocks_.rbegin();
}

void KvCache::cut(int64_t length) {
  length_ = length;
  filled_ = std::min(filled_, length);
  const int64_t last = filled_ / kCacheBlock;
  if (filled_ % kCacheBlock != 0 && blocks_[static_cast<size_t>(last)].written == nullptr) {
    filled_ = last * kCacheBlock;
  }
  give_up();
}

}  // namespace edge_kit
