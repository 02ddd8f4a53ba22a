// The sampler against probabilities worked out by hand and against a plain version of its filters.
#include "engine/sampler.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "io/status.h"
#include "test.h"

using edge_kit::Error;
using edge_kit::sample;
using edge_kit::Sampling;

namespace {

using Floats = std::vector<float>;
using Ids = std::vector<int32_t>;

Sampling sampling(float temperature) {
  Sampling s;
  s.temperature = temperature;
  return s;
}

int32_t draw(const Floats& logits, const Sampling& s, uint64_t position, const Ids& history = {}) {
  return sample(logits.data(), static_cast<int64_t>(logits.size()), s, history.data(),
                static_cast<int64_t>(history.size()), position);
}

bool fails(ek_status status, const std::string& part, const Floats& logits, const Sampling& s,
           const Ids& history = {}) {
  try {
    draw(logits, s, 17, history);
  } catch (const Error& error) {
    return error.status() == status && std::string(error.what()).find(part) != std::string::npos;
  }
  return false;
}

// Probability of each token as transformers' processors would leave it: sort, mask, renormalize.
std::vector<double> plain_probabilities(Floats logits, const Sampling& s, const Ids& history) {
  for (int32_t id : std::set<int32_t>(history.begin(), history.end())) {
    float& l = logits[static_cast<size_t>(id)];
    l = l < 0.0f ? l * s.repetition_penalty : l / s.repetition_penalty;
  }
  const size_t n = logits.size();
  std::vector<double> p(n);
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  const auto normalize = [&] {
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& value : p) value /= sum;
  };
  for (size_t i = 0; i < n; ++i)
    p[i] = std::exp((static_cast<double>(logits[i]) - logits[order[0]]) / s.temperature);
  if (s.top_k > 0) {
    const float kth = logits[order[std::min(n, static_cast<size_t>(s.top_k)) - 1]];
    for (size_t i = 0; i < n; ++i) p[i] = logits[i] < kth ? 0.0 : p[i];
  }
  normalize();
  double before = 0.0;
  for (size_t rank = 0; s.top_p < 1.0f && rank < n; ++rank) {
    const double here = p[order[rank]];
    if (rank > 0 && before >= s.top_p) p[order[rank]] = 0.0;
    before += here;
  }
  normalize();
  for (double& value : p) value = value < s.min_p * p[order[0]] ? 0.0 : value;
  normalize();
  return p;
}

void check_distribution(const Sampling& s, const Ids& history, const std::string& where) {
  const Floats logits = {1.5f, -0.4f, 2.0f, 0.3f, 2.0f, -3.0f, 0.9f, 1.1f, -8.0f, 0.0f};
  const std::vector<double> expected = plain_probabilities(logits, s, history);
  constexpr int kDraws = 40000;
  std::vector<int> counts(logits.size());
  for (int i = 0; i < kDraws; ++i)
    ++counts[static_cast<size_t>(draw(logits, s, static_cast<uint64_t>(i), history))];
  for (size_t i = 0; i < counts.size(); ++i) {
    const double sigma = std::sqrt(expected[i] * (1.0 - expected[i]) / kDraws);
    const double seen = static_cast<double>(counts[i]) / kDraws;
    CHECK_CASE(expected[i] == 0.0 ? counts[i] == 0 : std::fabs(seen - expected[i]) < 5.0 * sigma,
               where + ", token " + std::to_string(i));
  }
}

TEST(distributions) {
  for (const Ids& history : {Ids{}, Ids{2, 2, 3, 5}}) {
    for (int filters = 0; filters < 8; ++filters) {
      for (float temperature : {0.6f, 1.7f}) {
        Sampling s = sampling(temperature);
        s.seed = 5;
        s.top_k = filters & 1 ? 4 : 0;
        s.top_p = filters & 2 ? 0.8f : 1.0f;
        s.min_p = filters & 4 ? 0.25f : 0.0f;
        s.repetition_penalty = history.empty() ? 1.0f : 1.3f;
        check_distribution(s, history,
                          "filters " + std::to_string(filters) + ", temperature " +
                              std::to_string(temperature) + ", history " + std::to_string(history.size()));
      }
    }
  }
}

TEST(greedy) {
  const Floats logits = {0.5f, 3.0f, 3.0f, -1.0f};
  CHECK(draw(logits, sampling(0.0f), 0) == 1);
  Sampling s = sampling(0.0f);
  s.repetition_penalty = 1.5f;
  CHECK(draw(logits, s, 0, {1}) == 2);
  CHECK(draw(logits, s, 0, {1, 2, 2}) == 1);    // once per distinct id
  CHECK(draw({-1.0f, -1.2f}, s, 0, {0}) == 1);  // a negative logit is multiplied
}

TEST(seed_and_position) {
  Floats logits(1000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(static_cast<float>(i));
  const Sampling a = sampling(1.0f);
  Sampling b = a;
  b.seed = 1;
  int same_seed = 0, same_position = 0, shifted = 0;
  for (uint64_t i = 0; i < 500; ++i) {
    CHECK(draw(logits, a, i) == draw(logits, a, i));
    same_seed += draw(logits, a, i) == draw(logits, b, i);
    same_position += draw(logits, a, i) == draw(logits, a, i + 1);
    shifted += draw(logits, a, i + 1) == draw(logits, b, i);
  }
  CHECK(same_seed < 20 && same_position < 20 && shifted < 20);
}

TEST(extremes) {
  CHECK(draw({7.0f}, sampling(1.0f), 3) == 0);
  Sampling s = sampling(1.0f);
  s.top_p = 0.0f;
  CHECK(draw({1.0f, 2.0f, 1.5f}, s, 0) == 1);
  s = sampling(1.0f);
  s.top_k = 1;
  CHECK(draw({1.0f, 2.0f, 1.5f}, s, 0) == 1);
  s.top_k = 100;
  CHECK(draw({-300.0f, 300.0f}, s, 0) == 1);
  CHECK(draw({1.0f, 1.01f, 1.0f}, sampling(1e-6f), 0) == 1);
}

TEST(misuse) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (float temperature : {0.0f, 1.0f}) {
    CHECK(fails(EK_ERR_INTERNAL, "position 17 are broken: that of token 1 is", {0.0f, nan, 1.0f},
                sampling(temperature)));
    CHECK(fails(EK_ERR_INTERNAL, "that of token 0 is inf", {inf, 0.0f}, sampling(temperature)));
    CHECK(fails(EK_ERR_INTERNAL, "that of token 1 is -inf", {0.0f, -inf}, sampling(temperature)));
  }
  const auto refused = [](const std::string& part, const Sampling& s) {
    return fails(EK_ERR_INVALID_ARGUMENT, part, {0.0f, 1.0f}, s);
  };
  CHECK(refused("temperature", sampling(-0.1f)));
  CHECK(refused("temperature", sampling(nan)));
  Sampling s;
  s.top_k = -1;
  CHECK(refused("top_k is -1", s));
  s = Sampling();
  s.top_p = 1.5f;
  CHECK(refused("top_p is 1.5", s));
  s = Sampling();
  s.min_p = nan;
  CHECK(refused("min_p", s));
  s = Sampling();
  s.repetition_penalty = 0.0f;
  CHECK(refused("repetition_penalty", s));
  CHECK(fails(EK_ERR_INVALID_ARGUMENT, "history[1] is 2, outside the vocabulary of 2", {0.0f, 1.0f},
              Sampling(), {0, 2}));
}

// The random number of the token at `position`: SplitMix64, the seed mixed once before.
double plain_uniform(uint64_t seed, uint64_t position) {
  const auto mix = [](uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  };
  const uint64_t golden = 0x9e3779b97f4a7c15u;
  return static_cast<double>(mix(mix(seed + golden) + golden * (position + 1)) >> 11) / 9007199254740992.0;
}

// Every token against the plain version, which sorts all and walks: best first where something is filtered,
// else by id. Where the random number is close to a border, fp32 may choose the neighbour.
TEST(every_draw) {
  uint32_t state = 7;
  const auto random = [&state] {
    state = state * 1664525u + 1013904223u;
    return static_cast<double>(state >> 8) * 0x1p-24;
  };
  int n_checked = 0;
  for (size_t n : {1, 2, 15, 16, 17, 1000, 1024, 3001}) {
    for (int round = 0; round < 60; ++round) {
      Floats logits(n);
      const double spread = 1.0 + 20.0 * random();
      for (float& value : logits) {
        value = static_cast<float>(std::floor(64.0 * spread * random()) / 64.0);  // with ties
      }
      if (round % 5 == 0) logits[n / 2] = -1e30f;  // masked
      Sampling s = sampling(static_cast<float>(0.2 + 2.0 * random()));
      s.seed = static_cast<uint64_t>(round);
      s.top_k = round % 2 ? 1 + static_cast<int32_t>(40.0 * random()) : 0;
      s.top_p = round % 3 ? 1.0f : static_cast<float>(random());
      s.min_p = round % 7 ? 0.0f : static_cast<float>(0.5 * random());
      const std::vector<double> p = plain_probabilities(logits, s, {});
      Ids order(n);
      std::iota(order.begin(), order.end(), 0);
      const auto at = [](int32_t id) { return static_cast<size_t>(id); };
      const auto better = [&](int32_t a, int32_t b) { return logits[at(a)] > logits[at(b)]; };
      if (s.top_k > 0 || s.top_p < 1.0f || s.min_p > 0.0f) std::stable_sort(order.begin(), order.end(), better);
      for (uint64_t position = 0; position < 20; ++position) {
        const double share = plain_uniform(s.seed, position);
        double end = 0.0, distance = 1.0;
        int32_t expected = -1;
        for (int32_t id : order) {
          end += p[at(id)];
          distance = std::min(distance, std::fabs(end - share));
          if (expected < 0 && end > share) expected = id;
        }
        if (distance < 1e-5) continue;
        CHECK_CASE(draw(logits, s, position) == expected,
                   std::to_string(n) + " tokens, round " + std::to_string(round));
        ++n_checked;
      }
    }
  }
  CHECK(n_checked > 9000);
}

// A full sort of Qwen2's vocabulary takes longer than all else that is done for a token but the weights.
TEST(large_vocabulary) {
  Floats logits(151936);
  uint32_t state = 1;
  for (float& value : logits) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(state >> 8) * 0x1p-24f * 20.0f - 10.0f;
  }
  Sampling s = sampling(0.6f);
  s.top_p = 0.95f;
  const std::vector<double> expected = plain_probabilities(logits, s, {});
  for (uint64_t i = 0; i < 20; ++i) CHECK(expected[static_cast<size_t>(draw(logits, s, i))] > 0.0);
  for (float temperature : {0.6f, 5.0f}) {  // few tokens to choose from, and half of them
    s.temperature = temperature;
    const auto begin = std::chrono::steady_clock::now();
    for (uint64_t i = 0; i < 20; ++i) draw(logits, s, i);
    const double ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count() / 20;
    std::printf("temperature %.1f, top_p 0.95 of 151936: %.2f ms\n", static_cast<double>(temperature), ms);
  }
}

}  // namespace

int main() { return edge_kit_test::run_tests(); }
