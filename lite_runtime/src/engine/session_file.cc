#include "engine/session_file.h"

#include <algorithm>
#include <cstring>

#include "engine/memory.h"
#include "io/new_file.h"
#include "io/status.h"
#include "io/xxh64.h"

namespace edge_kit {
namespace {

constexpr char kMagic[] = "EK-SESS\n";
constexpr uint32_t kVersion = 1;
constexpr uint64_t kHeaderBytes = sizeof(SessionHeader), kSumBytes = 8, kAlignment = 64;
static_assert(kHeaderBytes == 64, "as the format says");

uint64_t aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

uint64_t ids_bytes(int64_t length) { return aligned(static_cast<uint64_t>(length) * sizeof(int32_t)); }

const char* name_of(KvType type) {
  const char* names[] = {"fp16", "fp32", "int8"};
  return names[static_cast<int>(type)];
}

const char* name_of_mode(bool exact) { return exact ? "exact" : "int8"; }

SessionHeader make_header(const SessionOrigin& origin, const KvCache& cache) {
  SessionHeader h{};
  std::memcpy(h.magic, kMagic, sizeof h.magic);
  h.version = kVersion;
  h.exact = origin.exact ? 1 : 0;
  h.fingerprint = origin.fingerprint;
  h.kv_type = static_cast<uint32_t>(origin.layout.type);
  h.n_layers = static_cast<uint32_t>(origin.layout.n_layers);
  h.n_kv_heads = static_cast<uint32_t>(origin.layout.n_kv_heads);
  h.head_dim = static_cast<uint32_t>(origin.layout.head_dim);
  h.length = cache.length();
  h.filled = cache.filled();
  h.n_written = static_cast<uint32_t>(cache.n_written());
  return h;
}

template <typename Visit>  // visit(layer, head)
void each_head(const KvLayout& layout, const Visit& visit) {
  for (int64_t layer = 0; layer < layout.n_layers; ++layer) {
    for (int64_t head = 0; head < layout.n_kv_heads; ++head) visit(layer, head);
  }
}

// Keys lie as [dim, kCacheBlock], values as [kCacheBlock, dim]; the block's first `tokens` are in use.
void clear_unused(const KvLayout& layout, int64_t tokens, uint8_t* block) {
  const int64_t unused = kCacheBlock - tokens, size = layout.element_size();
  each_head(layout, [&](int64_t layer, int64_t head) {
    uint8_t* keys = block + layout.keys_at(layer, head);
    for (int64_t d = 0; d < layout.head_dim; ++d) {
      std::memset(keys + (d * kCacheBlock + tokens) * size, 0, static_cast<size_t>(unused * size));
    }
    std::memset(block + layout.values_at(layer, head) + tokens * layout.head_dim * size, 0,
                static_cast<size_t>(unused * layout.head_dim * size));
  });
}

// Between the scales of the keys' channels and the values there may be a gap.
void clear_gaps(const KvLayout& layout, uint8_t* block) {
  const int64_t used = kCacheBlock * layout.head_dim + layout.head_dim * static_cast<int64_t>(sizeof(float));
  each_head(layout, [&](int64_t layer, int64_t head) {
    std::memset(block + layout.int8_keys_at(layer, head) + used, 0,
                static_cast<size_t>(layout.int8_keys_bytes() - used));
  });
}

}  // namespace

void write_session(const std::string& path, const SessionOrigin& origin, const std::vector<int32_t>& ids,
                   const KvCache& cache) {
  const KvLayout& layout = origin.layout;
  NewFile file(path);
  Xxh64 sum;
  const auto put = [&](const void* data, uint64_t bytes) {
    sum.add(data, static_cast<size_t>(bytes));
    file.write(data, static_cast<size_t>(bytes));
  };
  const SessionHeader header = make_header(origin, cache);
  put(&header, kHeaderBytes);
  std::vector<int32_t> padded = ids;
  padded.resize(static_cast<size_t>(ids_bytes(header.length) / sizeof(int32_t)));
  put(padded.data(), ids_bytes(header.length));

  const int64_t block_bytes = layout.block_bytes(), int8_block_bytes = layout.int8_block_bytes();
  const AlignedArray<uint8_t> block = make_aligned<uint8_t>(std::max(block_bytes, int8_block_bytes));
  const int64_t full = header.filled / kCacheBlock;
  for (int64_t b = 0; layout.is_int8() && b < full; ++b) {
    std::memcpy(block.get(), cache.int8_block(b), static_cast<size_t>(int8_block_bytes));
    clear_gaps(layout, block.get());
    put(block.get(), static_cast<uint64_t>(int8_block_bytes));
  }
  for (int64_t b = cache.n_blocks() - header.n_written; b < cache.n_blocks(); ++b) {
    std::memcpy(block.get(), cache.block(b), static_cast<size_t>(block_bytes));
    if (b == full) clear_unused(layout, header.filled % kCacheBlock, block.get());
    put(block.get(), static_cast<uint64_t>(block_bytes));
  }
  const uint64_t value = sum.value();
  file.write(&value, kSumBytes);
  file.finish();
}

SessionFile::SessionFile(const std::string& path, const SessionOrigin& origin, int64_t n_ctx)
    : file_(path, "a session file"), layout_(origin.layout) {
  const uint64_t readable = std::min(file_.size(), kHeaderBytes);
  file_.read(0, &header_, static_cast<size_t>(readable));
  if (readable < sizeof header_.magic || std::memcmp(header_.magic, kMagic, sizeof header_.magic) != 0) {
    throw Error(EK_ERR_FORMAT, path + ": not a session file; expected one that was saved from a session");
  }
  if (file_.size() < kHeaderBytes + kSumBytes) damaged("it ends inside its header");
  if (header_.version != kVersion) {
    throw Error(EK_ERR_FORMAT, path + ": a session file of version " + std::to_string(header_.version) +
                                   ", this library reads version " + std::to_string(kVersion) +
                                   ": restore it with the library that saved it");
  }
  check_sum();
  check_origin(origin);
  check_counts(n_ctx);
}

void SessionFile::damaged(const std::string& problem) const {
  throw Error(EK_ERR_FORMAT,
              file_.path() + ": a damaged session file: " + problem + ". Begin a new session instead.");
}

void SessionFile::check_sum() const {
  constexpr uint64_t kPiece = 1 << 18;
  const AlignedArray<uint8_t> piece = make_aligned<uint8_t>(kPiece);
  const uint64_t end = file_.size() - kSumBytes;
  Xxh64 sum;
  for (uint64_t at = 0; at < end; at += kPiece) {
    const size_t bytes = static_cast<size_t>(std::min(kPiece, end - at));
    file_.read(at, piece.get(), bytes);
    sum.add(piece.get(), bytes);
  }
  uint64_t expected;
  file_.read(end, &expected, kSumBytes);
  if (sum.value() != expected) damaged("its checksum differs");
}

void SessionFile::check_origin(const SessionOrigin& origin) const {
  const auto mismatch = [this](const std::string& found, const std::string& expected) {
    throw Error(EK_ERR_MISMATCH, file_.path() + ": a session of " + found + ", this model " + expected);
  };
  if (header_.fingerprint != origin.fingerprint || header_.n_layers != layout_.n_layers ||
      header_.n_kv_heads != layout_.n_kv_heads || header_.head_dim != layout_.head_dim) {
    mismatch("another model", "cannot go on with it: open the model that it was saved from");
  }
  if (header_.exact > 1) damaged("a mode of " + std::to_string(header_.exact));
  if ((header_.exact == 1) != origin.exact) {
    mismatch(std::string("a model in ") + name_of_mode(!origin.exact) + " mode",
             std::string("is open in ") + name_of_mode(origin.exact) + " mode: open it in the session's");
  }
  if (header_.kv_type > static_cast<uint32_t>(KvType::kInt8)) {
    damaged("a cache of type " + std::to_string(header_.kv_type));
  }
  const KvType type = static_cast<KvType>(header_.kv_type);
  if (type != layout_.type) {
    mismatch(std::string("a model with a cache of ") + name_of(type),
             std::string("has one of ") + name_of(layout_.type) + ": open it with the session's kv_dtype");
  }
}

// What a cache can be, see kv_cache.h; and then the file has just the size that this takes.
void SessionFile::check_counts(int64_t n_ctx) const {
  const int64_t length = header_.length, filled = header_.filled, n_written = header_.n_written;
  if (filled < 0 || filled > length) {
    damaged(std::to_string(filled) + " of " + std::to_string(length) + " tokens in its cache");
  }
  if (length > n_ctx) {
    throw Error(EK_ERR_CONTEXT_FULL, file_.path() + ": a session of " + std::to_string(length) +
                                         " tokens, the limit n_ctx is " + std::to_string(n_ctx) +
                                         ": open the model with a larger one");
  }
  if (filled < length && !(layout_.is_int8() && filled % kCacheBlock == 0 && length - filled < kCacheBlock)) {
    damaged(std::to_string(filled) + " of " + std::to_string(length) + " tokens in its cache");
  }
  const int64_t blocks = (filled + kCacheBlock - 1) / kCacheBlock;
  const int64_t most = layout_.is_int8() ? std::min<int64_t>(blocks, 2) : blocks;
  const int64_t least = layout_.is_int8() ? (filled % kCacheBlock != 0 ? 1 : 0) : blocks;
  if (n_written < least || n_written > most) {
    damaged(std::to_string(n_written) + " blocks as they are written, of " + std::to_string(blocks));
  }
  const uint64_t expected = cache_begin() + static_cast<uint64_t>(cache_bytes()) + kSumBytes;
  if (file_.size() != expected) {
    damaged("it has " + std::to_string(file_.size()) + " bytes, its content takes " +
            std::to_string(expected));
  }
}

uint64_t SessionFile::cache_begin() const { return kHeaderBytes + ids_bytes(header_.length); }

int64_t SessionFile::cache_bytes() const {
  const int64_t full = layout_.is_int8() ? header_.filled / kCacheBlock : 0;
  return full * layout_.int8_block_bytes() + header_.n_written * layout_.block_bytes();
}

std::vector<int32_t> SessionFile::read_ids(int64_t n_vocab) const {
  std::vector<int32_t> ids(static_cast<size_t>(header_.length));
  file_.read(kHeaderBytes, ids.data(), ids.size() * sizeof(int32_t));
  for (const int32_t id : ids) {
    if (id < 0 || id >= n_vocab) {
      damaged("id " + std::to_string(id) + " is outside the vocabulary of " + std::to_string(n_vocab));
    }
  }
  return ids;
}

void SessionFile::read_cache(KvCache* cache) const {
  cache->allocate(header_.length, header_.filled, header_.n_written);
  uint64_t at = cache_begin();
  const auto get = [&](uint8_t* block, int64_t bytes) {
    file_.read(at, block, static_cast<size_t>(bytes));
    at += static_cast<uint64_t>(bytes);
  };
  for (int64_t b = 0; layout_.is_int8() && b < header_.filled / kCacheBlock; ++b) {
    get(cache->int8_block(b), layout_.int8_block_bytes());
  }
  for (int64_t b = cache->n_blocks() - header_.n_written; b < cache->n_blocks(); ++b) {
    get(cache->block(b), layout_.block_bytes());
  }
}

}  // namespace edge_kit
