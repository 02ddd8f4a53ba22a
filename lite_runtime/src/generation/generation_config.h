// What a model's own files say of generation: generation_config.json and config.json of the bundle.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/sampler.h"
#include "text/bundle.h"

namespace edge_kit {

struct GenerationConfig {
  Sampling sampling;                // greedy unless do_sample is true
  std::vector<int32_t> end_tokens;  // any of them ends an answer
  int64_t max_new_tokens = 0;       // 0 = no limit but the context
};

// `eos`: the tokenizer's end token or kNoToken, for a model whose files name none. EK_ERR_FORMAT for a value
// of a wrong type.
GenerationConfig read_generation_config(const Bundle& bundle, int32_t eos);

// Tokens that the model was made for by config.json, else by the manifest; 0 where neither says.
int64_t read_context_limit(const Bundle& bundle);

}  // namespace edge_kit
