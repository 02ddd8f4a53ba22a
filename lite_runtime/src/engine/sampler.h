#pragma once

#include <cstdint>

namespace edge_kit {

struct Sampling {
  float temperature = 1.0f;         // 0 = greedy: the lowest id among the largest logits
  int32_t top_k = 0;                // 0 = off
  float top_p = 1.0f;               // 1 = off
  float min_p = 0.0f;               // 0 = off
  float repetition_penalty = 1.0f;  // 1 = off
  uint64_t seed = 0;
};

// Throws EK_ERR_INVALID_ARGUMENT for a parameter out of its range.
void check_sampling(const Sampling& sampling);

// Draws a token from logits [n_vocab]. The filters are those of transformers' logits processors, in their
// order: repetition penalty, temperature, top_k (ties of the k-th stay in), top_p, min_p. The random number
// depends on (seed, position) alone. Throws EK_ERR_INVALID_ARGUMENT, or EK_ERR_INTERNAL for logits that are
// not finite.
int32_t sample(const float* logits, int64_t n_vocab, const Sampling& sampling, const int32_t* history,
               int64_t n_history, uint64_t position);

}  // namespace edge_kit
