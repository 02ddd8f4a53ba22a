// What the engine's tests share: a toy model, forwards over parts of texts, exact comparisons.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/status.h"
#include "test.h"
#include "toy_model.h"

namespace edge_kit_test {

using Logits = std::vector<float>;
using Ids = std::vector<int32_t>;

inline Ids make_ids(int64_t count, uint32_t seed, int64_t n_vocab) {
  Ids ids;
  for (int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    ids.push_back(static_cast<int32_t>((seed >> 8) % static_cast<uint32_t>(n_vocab)));
  }
  return ids;
}

struct Part {
  Session* session;
  const int32_t* ids;
  int64_t count;
  int32_t logits = EK_LOGITS_ALL;
};

inline Logits forward(Model& model, const std::vector<Part>& parts) {
  std::vector<Segment> segments;
  int64_t rows = 0;
  for (const Part& part : parts) {
    segments.push_back({part.session, part.ids, part.count, part.logits});
    rows += part.logits == EK_LOGITS_ALL ? part.count : part.logits;
  }
  Logits logits(static_cast<size_t>(rows * model.plan().n_vocab), 0.0f);
  model.forward(segments, logits.data(), logits.size());
  return logits;
}

inline Logits feed(Model& model, Session& session, const Ids& ids, int64_t step) {
  Logits all;
  for (int64_t at = 0; at < static_cast<int64_t>(ids.size()); at += step) {
    const int64_t count = std::min<int64_t>(step, static_cast<int64_t>(ids.size()) - at);
    const Logits part = forward(model, {{&session, ids.data() + at, count}});
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

inline Logits feed(Model& model, const Ids& ids, int64_t step) {
  const auto session = model.create_session();
  return feed(model, *session, ids, step);
}

inline bool same(const Logits& a, const Logits& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline Logits rows_of(const Logits& logits, int64_t n_vocab, int64_t begin, int64_t end) {
  return Logits(logits.begin() + begin * n_vocab, logits.begin() + end * n_vocab);
}

// The status and message that a call fails with; EK_OK when it does not.
inline std::pair<ek_status, std::string> failure(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.status(), error.what()};
  }
  return {EK_OK, ""};
}

inline bool fails(ek_status status, const std::string& part, const std::function<void()>& call) {
  const auto seen = failure(call);
  const bool ok = seen.first == status && seen.second.find(part) != std::string::npos;
  if (!ok) std::printf("  got status %d, \"%s\"\n", seen.first, seen.second.c_str());
  return ok;
}

inline ModelOptions options(int n_threads, const char* isa = "", bool exact = false,
                     int64_t chunk_rows = kChunkRows) {
  ModelOptions o;
  o.n_threads = n_threads;
  o.isa = isa;
  o.exact = exact;
  o.chunk_rows = chunk_rows;
  return o;
}

// Large enough that linears and attention are shared among threads.
inline const ToyModel& toy() {
  static const ToyModel model(ToyShape{331, 128, 320, 2, 8, 2, 32});
  return model;
}

}  // namespace edge_kit_test
