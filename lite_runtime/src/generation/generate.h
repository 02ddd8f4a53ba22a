// Text generation: prefill, then one token at a time, as lite_runtime/generate.py does it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "edge_kit.h"
#include "engine/model.h"
#include "generation/generation_config.h"
#include "text/tokenizer.h"

namespace edge_kit {

struct GenerateOptions {
  Sampling sampling;
  std::vector<int32_t> end_tokens;
  int64_t max_new_tokens = 0;      // 0 = no limit but the context
  std::vector<std::string> stops;  // none of them empty; their text is not shown
};

struct Generation {
  ek_finish_reason finish_reason = EK_FINISH_STOP;
  int32_t last_token = kNoToken;
  int64_t n_generated = 0;
  double prefill_seconds = 0, decode_seconds = 0;  // without the time of `show`
};

// Cuts the session to what `prompt` begins with too, all but its last token, whose logits the answer begins
// with; gives the number of tokens kept. Throws EK_ERR_INVALID_ARGUMENT for an empty prompt and
// EK_ERR_CONTEXT_FULL for one that does not fit, with the session as it was.
size_t keep_beginning(Model& model, Session& session, const std::vector<int32_t>& prompt);

// Appends `prompt` and the answer to the session; the last token alone is not in it, since it was no input.
// `show` gets the text as it becomes certain, never a part of a character, and returns false to end the
// answer. Throws as keep_beginning does. A cancel ends the answer, or is used up when the answer ends.
Generation generate(Model& model, Session& session, const Tokenizer& tokenizer,
                    const std::vector<int32_t>& prompt, const GenerateOptions& options,
                    const std::function<bool(const std::string&)>& show);

}  // namespace edge_kit
