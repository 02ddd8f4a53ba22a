#include "generation/generate.h"

#include <algorithm>
#include <chrono>
#include <optional>

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

// The steps of one answer.
class Generator {
 public:
  Generator(Model& model, Session& session, const Tokenizer& tokenizer, const GenerateOptions& options)
      : model_(model),
        session_(session),
        tokenizer_(tokenizer),
        options_(options),
        logits_(static_cast<size_t>(model.plan().n_vocab)),
        matcher_(options.stops) {}

  // Appends `inputs` to the session and draws what follows; nothing if the session was cancelled.
  std::optional<int32_t> next_token(const std::vector<int32_t>& inputs) {
    const Clock::time_point started = Clock::now();
    try {
      model_.forward({{&session_, inputs.data(), static_cast<int64_t>(inputs.size()), EK_LOGITS_LAST}},
                     logits_.data(), logits_.size());
    } catch (const Error& error) {
      if (error.status() != EK_ERR_CANCELLED) throw;
      return std::nullopt;
    }
    const int64_t position = static_cast<int64_t>(session_.ids.size());
    const int32_t token = sample(logits_.data(), model_.plan().n_vocab, options_.sampling,
                                 session_.ids.data(), position, static_cast<uint64_t>(position));
    const double seconds = std::chrono::duration<double>(Clock::now() - started).count();
    (result_.n_generated == 0 ? result_.prefill_seconds : result_.decode_seconds) += seconds;
    ++result_.n_generated;
    result_.last_token = token;
    return token;
  }

  // Appends to `shown` the text that becomes certain with the token; why the answer ends there, if it does.
  std::optional<ek_finish_reason> take(int32_t token, std::string* shown) {
    if (contains(options_.end_tokens, token)) return EK_FINISH_STOP;
    std::string text;
    if (!tokenizer_.is_special(token)) utf8_.add(tokenizer_.token_bytes(token), &text);
    if (matcher_.add(text, shown)) return EK_FINISH_STOP;
    const bool is_full = static_cast<int64_t>(session_.ids.size()) == model_.n_ctx();
    if (result_.n_generated == options_.max_new_tokens || is_full) return EK_FINISH_LENGTH;
    return std::nullopt;
  }

  void flush(std::string* shown) { matcher_.flush(shown); }

  Generation result(ek_finish_reason reason) {
    result_.finish_reason = reason;
    return result_;
  }

 private:
  Model& model_;
  Session& session_;
  const Tokenizer& tokenizer_;
  const GenerateOptions& options_;
  std::vector<float> logits_;
  Utf8Stream utf8_;
  StopMatcher matcher_;
  Generation result_;
};

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
  Generator generator(model, session, tokenizer, options);
  std::vector<int32_t> inputs = prompt;
  std::optional<ek_finish_reason> ended;
  while (!ended) {
    std::string shown;
    const std::optional<int32_t> token = generator.next_token(inputs);
    ended = token ? generator.take(*token, &shown) : EK_FINISH_CANCELLED;
    if (ended) generator.flush(&shown);
    if (!shown.empty() && !show(shown) && !ended) ended = EK_FINISH_CALLBACK;
    if (!ended) inputs.assign(1, *token);
  }
  session.cancelled.store(false);
  return generator.result(*ended);
}

}  // namespace edge_kit
