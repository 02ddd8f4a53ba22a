// XXH64 with seed 0: a fast 64-bit hash against accidents, not against forgers.
// Algorithm: Yann Collet, "xxHash fast digest algorithm", version 0.1.1, of which `xxhsum -H1` is another
// implementation. Numbers are read as little-endian.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edge_kit {

class Xxh64 {
 public:
  Xxh64();
  void add(const void* data, size_t bytes);
  uint64_t value() const;  // of all that was added

 private:
  static constexpr size_t kStripe = 32;

  void add_stripe(const uint8_t* data);

  uint64_t lanes_[4];
  uint64_t total_ = 0;      // bytes
  uint8_t tail_[kStripe];  // the last total_ % kStripe bytes
};

}  // namespace edge_kit
