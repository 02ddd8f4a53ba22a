#include "generation/generate.h"

#include <algorithm>
#include <chrono>

#include "generation/stop_matcher.h"
#include "io/utf8.h"

namespace edge_kit {
namespace {

using Clock = std::chrono::steady_clock;

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// It has a token, and fits behind the `n_kept` ones that stay in the session.
void check_prompt(const Model& model, int64_t n_kept, const std::vector<int32_t>& prompt) {
  if (prompt.empty()) {
    throw Error(EK_ERR_INVALID_ARGUMENT, "the prompt is empty, expected at least one token");
  }
  const size_t n_new = prompt.size();
  const int64_t needed = n_kept + static_cast<int64_t>(n_new);
  if (needed <= model.n_ctx()) return;
  throw Error(EK_ERR_CONTEXT_FULL,
              "the prompt needs " + std::to_string(needed) + " tokens of context (" + std::to_string(n_kept) +
                  " are in the session, " + std::to_string(n_new) + " are new), the limit is " +
                  std::to_string(model.n_ctx()) + ": shorten it, or open the model with a larger n_ctx");
}

}  // namespace

size_t keep_beginning(Model& model, Session& session, const std::vector<int32_t>& prompt) {
  check_prompt(model, 0, prompt);
  const std::vector<int32_t>& held = session.ids;
  const auto differs = std::mismatch(prompt.begin(), prompt.end() - 1, held.begin(), held.end()).first;
  const size_t n_kept = static_cast<size_t>(differs - prompt.begin());
  model.cut(session, static_cast<int64_t>(n_kept));
  return n_kept;
}

Generation generate(Model& model, Session& session, const Tokenizer& tokenizer,
                    const std::vector<int32_t>& prompt, const GenerateOptions& options,
                    const std::function<bool(const std::string&)>& show) {
  check_prompt(model, session.cache.length(), prompt);
  check_sampling(options.sampling);
  Generation result;
  std::vector<float> logits(static_cast<size_t>(model.plan().n_vocab));
  std::vector<int32_t> inputs = prompt;
  Utf8Stream utf8;
  StopMatcher matcher(options.stops);
  bool ended = false;
  const auto finish = [&](ek_finish_reason reason) {
    result.finish_reason = reason;
    ended = true;
  };
  while (!ended) {
    std::string shown, text;
    const Clock::time_point started = Clock::now();
    try {
      model.forward({{&session, inputs.data(), static_cast<int64_t>(inputs.size()), EK_LOGITS_LAST}},
                    logits.data(), logits.size());
    } catch (const Error& error) {
      if (error.status() != EK_ERR_CANCELLED) throw;
      finish(EK_FINISH_CANCELLED);
    }
    if (!ended) {
      const int64_t position = static_cast<int64_t>(session.ids.size());
      const int32_t token = sample(logits.data(), model.plan().n_vocab, options.sampling, session.ids.data(),
                                   position, static_cast<uint64_t>(position));
      const double seconds = std::chrono::duration<double>(Clock::now() - started).count();
      (result.n_generated == 0 ? result.prefill_seconds : result.decode_seconds) += seconds;
      ++result.n_generated;
      inputs.assign(1, token);
      if (contains(options.end_tokens, token)) {
        finish(EK_FINISH_STOP);
      } else {
        if (!tokenizer.is_special(token)) utf8.add(tokenizer.token_bytes(token), &text);
        if (matcher.add(text, &shown)) finish(EK_FINISH_STOP);
      }
      const bool full = result.n_generated == options.max_new_tokens || position == model.n_ctx();
      if (!ended && full) finish(EK_FINISH_LENGTH);
    }
    if (ended) matcher.flush(&shown);
    if (!shown.empty() && !show(shown) && !ended) finish(EK_FINISH_CALLBACK);
  }
  session.cancelled.store(false);
  return result;
}

}  // namespace edge_kit
