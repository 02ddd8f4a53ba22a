#include "io/xxh64.h"

#include <algorithm>
#include <cstring>

#include "io/little_endian.h"

namespace edge_kit {
namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87u, kPrime2 = 0xC2B2AE3D27D4EB4Fu,
                   kPrime3 = 0x165667B19E3779F9u, kPrime4 = 0x85EBCA77C2B2AE63u,
                   kPrime5 = 0x27D4EB2F165667C5u;

uint64_t rotate(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

uint64_t round_of(uint64_t lane, uint64_t word) { return rotate(lane + word * kPrime2, 31) * kPrime1; }

}  // namespace

Xxh64::Xxh64() : lanes_{kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1} {}

void Xxh64::add_stripe(const uint8_t* data) {
  for (int i = 0; i < 4; ++i) lanes_[i] = round_of(lanes_[i], load<uint64_t>(data + 8 * i));
}

void Xxh64::add(const void* data, size_t bytes) {
  const uint8_t* at = static_cast<const uint8_t*>(data);
  const size_t before = total_ % kStripe;
  total_ += bytes;
  if (before != 0) {
    const size_t part = std::min(bytes, kStripe - before);
    std::memcpy(tail_ + before, at, part);
    if (before + part < kStripe) return;
    add_stripe(tail_);
    at += part;
    bytes -= part;
  }
  for (; bytes >= kStripe; at += kStripe, bytes -= kStripe) add_stripe(at);
  if (bytes > 0) std::memcpy(tail_, at, bytes);
}

uint64_t Xxh64::value() const {
  uint64_t hash = kPrime5;
  if (total_ >= kStripe) {
    hash = rotate(lanes_[0], 1) + rotate(lanes_[1], 7) + rotate(lanes_[2], 12) + rotate(lanes_[3], 18);
    for (const uint64_t lane : lanes_) hash = (hash ^ round_of(0, lane)) * kPrime1 + kPrime4;
  }
  hash += total_;
  const uint8_t *at = tail_, *end = tail_ + total_ % kStripe;
  for (; end - at >= 8; at += 8) {
    hash = rotate(hash ^ round_of(0, load<uint64_t>(at)), 27) * kPrime1 + kPrime4;
  }
  if (end - at >= 4) {
    hash = rotate(hash ^ load<uint32_t>(at) * kPrime1, 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at < end; ++at) hash = rotate(hash ^ *at * kPrime5, 11) * kPrime1;
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

}  // namespace edge_kit
