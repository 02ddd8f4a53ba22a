#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "io/status.h"

namespace edge_kit {
namespace {

struct Candidate {
  float logit;
  int32_t id;
};

// Heap order: the largest logit on top, the lowest id first among equals.
struct RanksBelow {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return a.logit < b.logit || (a.logit == b.logit && a.id > b.id);
  }
};

[[noreturn]] void invalid(const std::string& message) { throw Error(EK_ERR_INVALID_ARGUMENT, message); }

void check_finite(const float* logits, int64_t n_vocab, uint64_t position) {
  constexpr uint32_t kExponent = 0x7f800000;  // all ones in an infinity and a NaN
  uint32_t broken = 0;
  for (int64_t i = 0; i < n_vocab; ++i) {
    uint32_t bits;
    std::memcpy(&bits, logits + i, sizeof bits);
    broken |= (bits & kExponent) == kExponent ? 1 : 0;
  }
  for (int64_t i = 0; broken != 0 && i < n_vocab; ++i) {
    if (std::isfinite(logits[i])) continue;
    throw Error(EK_ERR_INTERNAL, "the logits at position " + std::to_string(position) +
                                     " are broken: that of token " + std::to_string(i) + " is " +
                                     std::to_string(logits[i]) +
                                     ". Verify the file, and try EDGE_KIT_ISA=scalar");
  }
}

void check_history(const int32_t* history, int64_t n_history, int64_t n_vocab) {
  for (int64_t i = 0; i < n_history; ++i) {
    if (history[i] >= 0 && history[i] < n_vocab) continue;
    invalid("history[" + std::to_string(i) + "] is " + std::to_string(history[i]) +
            ", outside the vocabulary of " + std::to_string(n_vocab));
  }
}

// CTRL's penalty (Keskar et al. 2019, arXiv:1909.05858), once per distinct id of the history.
std::vector<float> penalize(const float* logits, int64_t n_vocab, float penalty, const int32_t* history,
                            int64_t n_history) {
  std::vector<float> result(logits, logits + n_vocab);
  for (int64_t i = 0; i < n_history; ++i) {
    const float logit = logits[history[i]];
    result[static_cast<size_t>(history[i])] = logit > 0.0f ? logit / penalty : logit * penalty;
  }
  return result;
}

// Uniform in [0, 1): the SplitMix64 generator (Steele, Lea, Flood 2014) at step `position` of the seed's
// stream.
double uniform(uint64_t seed, uint64_t position) {
  const auto mix = [](uint64_t z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  };
  // The seed is mixed first, so that neighbouring seeds are not shifted copies of one stream.
  const uint64_t bits = mix(mix(seed + 0x9e3779b97f4a7c15u) + (position + 1) * 0x9e3779b97f4a7c15u);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// exp((score - largest) / temperature): probabilities up to a common factor.
std::vector<float> weigh(const float* scores, size_t n, float temperature) {
  const float largest = *std::max_element(scores, scores + n);
  std::vector<float> weights(n);
  for (size_t i = 0; i < n; ++i) weights[i] = std::exp((scores[i] - largest) / temperature);
  return weights;
}

// The k-th largest score, counted from 1.
float kth_largest(std::vector<float> scores, int64_t k) {
  const auto kth = scores.begin() + (k - 1);
  std::nth_element(scores.begin(), kth, scores.end(), std::greater<float>());
  return *kth;
}

// The ids that pass top_k, top_p and min_p, best first. Only as many are put in order as are looked at.
std::vector<int32_t> filter(const float* scores, const std::vector<float>& weights, const Sampling& s) {
  const size_t n = weights.size();
  const bool has_top_k = s.top_k > 0 && static_cast<size_t>(s.top_k) < n;
  const float lowest =
      has_top_k ? kth_largest({scores, scores + n}, s.top_k) : -std::numeric_limits<float>::infinity();
  double total = 0.0;
  for (size_t i = 0; i < n; ++i) total += scores[i] >= lowest ? weights[i] : 0.0f;
  // What weighs less than this cannot pass top_p either: n of it together weigh less than 1 - top_p.
  const double least = std::max<double>(s.min_p, (1.0 - s.top_p) * total / static_cast<double>(n));
  std::vector<Candidate> heap;
  for (size_t i = 0; i < n; ++i) {
    if (scores[i] >= lowest && weights[i] >= least) heap.push_back({scores[i], static_cast<int32_t>(i)});
  }
  std::make_heap(heap.begin(), heap.end(), RanksBelow());
  std::vector<int32_t> kept;
  double above = 0.0;  // weight of those kept so far
  while (!heap.empty() && (kept.empty() || s.top_p == 1.0f || above < s.top_p * total)) {
    std::pop_heap(heap.begin(), heap.end(), RanksBelow());
    kept.push_back(heap.back().id);
    above += weights[static_cast<size_t>(heap.back().id)];
    heap.pop_back();
  }
  return kept;
}

}  // namespace

void check_sampling(const Sampling& s) {
  if (!(s.temperature >= 0.0f) || std::isinf(s.temperature)) {
    invalid("temperature is " + std::to_string(s.temperature) + "; it must be 0 or more");
  }
  if (s.top_k < 0) invalid("top_k is " + std::to_string(s.top_k) + "; it must be 0 (off) or more");
  if (!(s.top_p >= 0.0f && s.top_p <= 1.0f))
    invalid("top_p is " + std::to_string(s.top_p) + "; it must be 0 to 1");
  if (!(s.min_p >= 0.0f && s.min_p <= 1.0f))
    invalid("min_p is " + std::to_string(s.min_p) + "; it must be 0 to 1");
  if (!(s.repetition_penalty > 0.0f) || std::isinf(s.repetition_penalty)) {
    invalid("repetition_penalty is " + std::to_string(s.repetition_penalty) +
            "; it must be above 0 (1 = off)");
  }
}

int32_t sample(const float* logits, int64_t n_vocab, const Sampling& sampling, const int32_t* history,
               int64_t n_history, uint64_t position) {
  check_sampling(sampling);
  check_finite(logits, n_vocab, position);
  check_history(history, n_history, n_vocab);
  const float* scores = logits;
  std::vector<float> penalized;
  if (sampling.repetition_penalty != 1.0f && n_history > 0) {
    penalized = penalize(logits, n_vocab, sampling.repetition_penalty, history, n_history);
    scores = penalized.data();
  }
  if (sampling.temperature == 0.0f)
    return static_cast<int32_t>(std::max_element(scores, scores + n_vocab) - scores);
  const std::vector<float> weights = weigh(scores, static_cast<size_t>(n_vocab), sampling.temperature);
  std::vector<int32_t> ids;
  if (sampling.top_k > 0 || sampling.top_p < 1.0f || sampling.min_p > 0.0f) {
    ids = filter(scores, weights, sampling);
  } else {
    ids.resize(weights.size());
    std::iota(ids.begin(), ids.end(), 0);
  }
  double total = 0.0;
  for (int32_t id : ids) total += weights[static_cast<size_t>(id)];
  double rest = uniform(sampling.seed, position) * total;
  for (int32_t id : ids) {
    rest -= weights[static_cast<size_t>(id)];
    if (rest < 0.0) return id;
  }
  return ids.front();  // rounding left nothing for the last one
}

}  // namespace edge_kit
