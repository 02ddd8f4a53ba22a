#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/kv_cache.h"

namespace edge_kit {

class Model;

// What a model remembers of one text. Changed by its model only, under the model's lock; `cancelled` may be
// set at any time.
struct Session {
  Session(const Model* model, KvCache content) : owner(model), cache(std::move(content)) {}

  const Model* const owner;
  KvCache cache;
  std::vector<int32_t> ids;  // [cache.length()], during a forward with the new ones
  std::atomic<bool> cancelled{false};
};

// Rows of one session in a forward.
struct Segment {
  Session* session;
  const int32_t* ids;  // [n_ids]
  int64_t n_ids;
  int32_t logits;  // ek_logits
};

}  // namespace edge_kit
