#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
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
bool ranks_below(const Candidate& a, const Candidate& b) {
  return a.logit < b.logit || (a.logit == b.logit && a.id > b.id);
}

[[noreturn]] void invalid(const std::string& message) { throw Error(EK_ERR_INVALID_ARGUMENT, message); }

void check(const Sampling& s) {
  if (!(s.temperature >= 0.0f) || std::isinf(s.temperature)) {
    invalid("temperature is " + std::to_string(s.temperature) + "; it must be 0 or more");
  }
  if (s.top_k < 0) invalid("top_k is " + std::to_string(s.top_k) + "; it must be 0 (off) or more");
  if (!(s.top_p >= 0.0f && s.top_p <= 1.0f)) invalid("top_p is " + std::to_string(s.top_p) + "; it must be 0 to 1");
  if (!(s.min_p >= 0.0f && s.min_p <= 1.0f)) invalid("min_p is " + std::to_string(s.min_p) + "; it must be 0 to 1");
  if (!(s.repetition_penalty > 0.0f) || std::isinf(s.repetition_penalty)) {
    invalid("repetition_penalty is " + std::to_string(s.repetition_penalty) + "; it must be above 0 (1 = off)");
  }
}

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
    throw Error(EK_ERR_INTERNAL, "the logits at position " + std::to_string(position) + " are broken: that of token " +
                                     std::to_string(i) + " is " + std::to_string(logits[i]) +
                                     ". Verify the file, and try EDGE_KIT_ISA=scalar");
  }
}

// CTRL's penalty (Keskar et al. 2019, arXiv:1909.05858), once per distinct id of the history.
std::vector<float> penalize(const float* logits, int64_t n_vocab, float penalty, const int32_t* history,
                            int64_t n_history) {
  std::vector<float> result(logits, logits + n_vocab);
  for (int64_t i = 0; i < n_history; ++i) {
    const int32_t id = history[i];
    if (id < 0 || id >= n_vocab) {
      invalid("history[" + std::to_string(i) + "] is " + std::to_string(id) + ", outside the vocabulary of " +
              std::to_string(n_vocab));
    }
    result[static_cast<size_t>(id)] = logits[id] > 0.0f ? logits[id] / penalty : logits[id] * penalty;
  }
  return result;
}

// Uniform in [0, 1): the SplitMix64 generator (Steele, Lea, Flood 2014) at step `position` of the seed's stream.
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

// exp((logit - largest) / temperature): probabilities up to a common factor.
std::vector<float> weigh(const std::vector<float>& scores, float temperature) {
  const float largest = *std::max_element(scores.begin(), scores.end());
  std::vector<float> weights(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) weights[i] = std::exp((scores[i] - largest) / temperature);
  return weights;
}

// The candidates that pass top_k, top_p and min_p, best first. Only as many are put in order as are looked at.
std::vector<Candidate> filter(const std::vector<float>& scores, const std::vector<float>& weights,
                              const Sampling& s) {
  const size_t n = scores.size();
  const size_t top_k = s.top_k > 0 ? std::min(n, static_cast<size_t>(s.top_k)) : n;
  double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  // Without top_k, what weighs less than this cannot pass: n of it together weigh less than 1 - top_p.
  const double least = top_k < n ? 0.0 : std::max<double>(s.min_p, (1.0 - s.top_p) * total / static_cast<double>(n));
  std::vector<Candidate> heap, kept;
  for (size_t i = 0; i < n; ++i) {
    if (weights[i] >= least) heap.push_back({scores[i], static_cast<int32_t>(i)});
  }
  std::make_heap(heap.begin(), heap.end(), ranks_below);
  const auto take_best = [&] {
    std::pop_heap(heap.begin(), heap.end(), ranks_below);
    kept.push_back(heap.back());
    heap.pop_back();
    return static_cast<double>(weights[static_cast<size_t>(kept.back().id)]);
  };
  if (top_k < n) {
    total = 0.0;
    while (!heap.empty() && (kept.size() < top_k || heap.front().logit == kept.back().logit)) total += take_best();
    heap.swap(kept);
    kept.clear();
    std::make_heap(heap.begin(), heap.end(), ranks_below);
  }
  double above = 0.0;  // weight of the candidates before the one at hand
  while (!heap.empty()) {
    const double weight = take_best();
    const bool out = (s.top_p < 1.0f && above >= s.top_p * total) || weight < s.min_p;
    if (out && kept.size() > 1) {
      kept.pop_back();
      break;
    }
    above += weight;
  }
  return kept;
}

}  // namespace

int32_t sample(const float* logits, int64_t n_vocab, const Sampling& sampling, const int32_t* history,
               int64_t n_history, uint64_t position) {
  check(sampling);
  check_finite(logits, n_vocab, position);
  const std::vector<float> scores = penalize(logits, n_vocab, sampling.repetition_penalty, history, n_history);
  if (sampling.temperature == 0.0f) {
    return static_cast<int32_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
  }
  const std::vector<float> weights = weigh(scores, sampling.temperature);
  std::vector<int32_t> ids;
  if (sampling.top_k > 0 || sampling.top_p < 1.0f || sampling.min_p > 0.0f) {
    for (const Candidate& candidate : filter(scores, weights, sampling)) ids.push_back(candidate.id);
  } else {
    ids.resize(scores.size());
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
