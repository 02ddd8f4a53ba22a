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

// Running results side by side, so that a compiler makes vectors of them: a vocabulary has 150,000 entries.
constexpr size_t kLanes = 16;

struct Candidate {
  float logit;
  float weight;
  int32_t id;
};

// The largest logit first, the lowest id first among equals.
struct RanksAbove {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  }
};

uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

[[noreturn]] void invalid(const std::string& message) { throw Error(EK_ERR_INVALID_ARGUMENT, message); }

void check_finite(const float* logits, int64_t n_vocab, uint64_t position) {
  constexpr uint32_t kExponent = 0x7f800000;  // all ones in an infinity and a NaN
  uint32_t broken = 0;
  for (int64_t i = 0; i < n_vocab; ++i) {
    broken |= (bits_of(logits[i]) & kExponent) == kExponent ? 1 : 0;
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

float largest_of(const float* x, size_t n) {
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, x[0]);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = std::max(lanes[lane], x[i + lane]);
  }
  for (; i < n; ++i) lanes[0] = std::max(lanes[0], x[i]);
  return *std::max_element(lanes, lanes + kLanes);
}

double sum_of(const float* x, size_t n) {
  double lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += static_cast<double>(x[i + lane]);
  }
  for (; i < n; ++i) lanes[0] += static_cast<double>(x[i]);
  return std::accumulate(lanes, lanes + kLanes, 0.0);
}

// e^x for x <= 0 with a relative error below 3e-7, 0 below -87.7, a little before fp32 ends. Unlike std::exp it
// becomes vectors in a loop, and is the same on every platform.
// x = n ln2 + r with |r| <= ln2 / 2, e^r by its Taylor series; ln2 in two parts keeps r exact.
float exponential(float x) {
  // Below 0 the smaller number has the larger bits; as floats GCC would compare one by one.
  const float clamped = float_of(std::min(bits_of(x), bits_of(-88.0f)));
  const float shifted = clamped * 1.44269504f + 0x1.8p23f;  // its last bits are n, rounded
  const float n = shifted - 0x1.8p23f;
  const float r = (clamped - n * 0.693145752f) - n * 1.42860682e-6f;
  float sum = 1.0f / 5040;
  sum = sum * r + 1.0f / 720;
  sum = sum * r + 1.0f / 120;
  sum = sum * r + 1.0f / 24;
  sum = sum * r + 1.0f / 6;
  sum = sum * r + 0.5f;
  sum = sum * r + 1.0f;
  sum = sum * r + 1.0f;
  return sum * float_of((bits_of(shifted) << 23) + bits_of(1.0f));  // 2^n, and 0 for n = -127
}

// exp((score - largest) / temperature): probabilities up to a common factor.
std::vector<float> weigh(const float* scores, size_t n, float temperature) {
  const float largest = largest_of(scores, n);
  std::vector<float> weights(n);
  for (size_t i = 0; i < n; ++i) weights[i] = exponential((scores[i] - largest) / temperature);
  return weights;
}

// The k-th largest score, counted from 1.
float kth_largest(const float* scores, size_t n, size_t k) {
  std::vector<float> best(scores, scores + k);  // a heap, the smallest on top
  std::make_heap(best.begin(), best.end(), std::greater<float>());
  for (size_t i = k; i < n; ++i) {
    if (scores[i] <= best.front()) continue;
    std::pop_heap(best.begin(), best.end(), std::greater<float>());
    best.back() = scores[i];
    std::push_heap(best.begin(), best.end(), std::greater<float>());
  }
  return best.front();
}

double sum_of(const Candidate* begin, const Candidate* end) {
  return std::accumulate(begin, end, 0.0, [](double sum, const Candidate& c) { return sum + c.weight; });
}

// Puts the best ones, as many as it takes for their weights to reach `target`, in front of the others, and the
// last of them at their end. Gives how many they are, 1 at least. Takes linear time, since nothing is sorted.
size_t select_best(std::vector<Candidate>& candidates, double target) {
  Candidate* const first = candidates.data();
  size_t begin = 0, end = candidates.size();
  double above = 0.0;  // weight of those before `begin`; the last one is in [begin, end)
  while (end - begin > 1) {
    const size_t middle = begin + (end - begin) / 2;
    std::nth_element(first + begin, first + middle, first + end, RanksAbove());
    const double part = sum_of(first + begin, first + middle);
    if (above + part >= target) {
      end = middle;
    } else {
      above += part;
      begin = middle;
    }
  }
  return end;
}

// Those that pass top_k, top_p and min_p.
std::vector<Candidate> filter(const float* scores, const std::vector<float>& weights, const Sampling& s) {
  const size_t n = weights.size();
  const bool has_top_k = s.top_k > 0 && static_cast<size_t>(s.top_k) < n;
  const float lowest = has_top_k ? kth_largest(scores, n, static_cast<size_t>(s.top_k))
                                 : -std::numeric_limits<float>::infinity();
  double total = 0.0;
  if (has_top_k) {
    for (size_t i = 0; i < n; ++i) total += scores[i] >= lowest ? weights[i] : 0.0f;
  } else {
    total = sum_of(weights.data(), n);
  }
  // What weighs less than this cannot pass top_p either: n of it together weigh less than 1 - top_p.
  const double least = std::max<double>(s.min_p, (1.0 - s.top_p) * total / static_cast<double>(n));
  std::vector<Candidate> kept;
  for (size_t i = 0; i < n; ++i) {
    if (scores[i] >= lowest && weights[i] >= least) {
      kept.push_back({scores[i], weights[i], static_cast<int32_t>(i)});
    }
  }
  if (s.top_p < 1.0f) kept.resize(select_best(kept, s.top_p * total));
  return kept;
}

// The token at `share` of the weights put in a row, with `share` in [0, 1).
int32_t find_share(const std::vector<float>& weights, double share) {
  constexpr size_t kBlock = 1024;
  const size_t n = weights.size();
  std::vector<double> sums;
  for (size_t i = 0; i < n; i += kBlock) sums.push_back(sum_of(weights.data() + i, std::min(kBlock, n - i)));
  double rest = share * std::accumulate(sums.begin(), sums.end(), 0.0);
  size_t block = 0;
  while (block + 1 < sums.size() && rest >= sums[block]) rest -= sums[block++];
  for (size_t i = block * kBlock; i < n; ++i) {
    rest -= static_cast<double>(weights[i]);
    if (rest < 0.0) return static_cast<int32_t>(i);
  }
  // Rounding left nothing for the last one.
  return static_cast<int32_t>(std::max_element(weights.begin(), weights.end()) - weights.begin());
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
  const size_t n = static_cast<size_t>(n_vocab);
  if (sampling.temperature == 0.0f)
    return static_cast<int32_t>(std::find(scores, scores + n, largest_of(scores, n)) - scores);
  const std::vector<float> weights = weigh(scores, n, sampling.temperature);
  const double share = uniform(sampling.seed, position);
  if (sampling.top_k == 0 && sampling.top_p == 1.0f && sampling.min_p == 0.0f) {
    return find_share(weights, share);
  }
  std::vector<Candidate> kept = filter(scores, weights, sampling);
  const double total = sum_of(kept.data(), kept.data() + kept.size());
  return kept[select_best(kept, share * total) - 1].id;
}

}  // namespace edge_kit
