// A session on disk. All numbers are little-endian, all parts but the last multiples of 64 bytes:
//
//   0   magic "EK-SESS\n"
//   8   u32 version, 1
//   12  u32 mode: 0 int8, 1 exact
//   16  u64 fingerprint of the model's plan (plan/fingerprint.h)
//   24  u32 type of the cache (KvType), layers, key/value heads, head dimension
//   40  i64 tokens
//   48  i64 `filled`: tokens whose keys and values are there, see kv_cache.h
//   56  u32 the number of blocks, the last ones, that are there as they are written; u32 0
//   64  i32 ids, one per token, zeros up to a multiple of 64 bytes
//   …   int8 cache: its full blocks, quantized; then, and in every cache: the blocks as they are written
//   end u64 XXH64 of everything before
//
// What no token needs (places in a block behind `filled`, gaps between planes) is zero: nothing but the
// session's own content reaches the disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/kv_cache.h"
#include "io/regular_file.h"

namespace edge_kit {

// What a session came from: only the same may go on with it.
struct SessionOrigin {
  uint64_t fingerprint;
  bool exact;
  KvLayout layout;
};

struct SessionHeader {
  char magic[8];
  uint32_t version, exact;
  uint64_t fingerprint;
  uint32_t kv_type, n_layers, n_kv_heads, head_dim;
  int64_t length, filled;
  uint32_t n_written, zero;
};

// The file appears whole or not at all. Throws EK_ERR_IO.
void write_session(const std::string& path, const SessionOrigin& origin, const std::vector<int32_t>& ids,
                   const KvCache& cache);

// A session file whose checksum, origin and sizes are right.
class SessionFile {
 public:
  // Throws EK_ERR_IO, EK_ERR_FORMAT, EK_ERR_MISMATCH for another origin, EK_ERR_CONTEXT_FULL.
  SessionFile(const std::string& path, const SessionOrigin& origin, int64_t n_ctx);

  std::vector<int32_t> read_ids(int64_t n_vocab) const;  // EK_ERR_FORMAT if one is outside the vocabulary
  int64_t cache_bytes() const;
  void read_cache(KvCache* cache) const;  // into an empty one

 private:
  [[noreturn]] void damaged(const std::string& problem) const;
  void check_sum() const;
  void check_origin(const SessionOrigin& origin) const;
  void check_counts(int64_t n_ctx) const;
  uint64_t cache_begin() const;

  const RegularFile file_;
  const KvLayout layout_;
  SessionHeader header_{};
};

}  // namespace edge_kit
