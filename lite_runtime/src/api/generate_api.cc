// The calls of the C API that answer.
#include <memory>
#include <string>
#include <vector>

#include "api/arguments.h"
#include "api/guard.h"
#include "api/handles.h"
#include "generation/generate.h"
#include "text/chat_format.h"

using namespace edge_kit;

namespace {

GenerateOptions read_options(const ek_generate_options* given, const GenerationConfig& config) {
  GenerateOptions options;
  options.sampling = config.sampling;
  options.end_tokens = config.end_tokens;
  options.max_new_tokens = config.max_new_tokens;
  if (given != nullptr) check_size(*given, "ek_generate_options");
  if (given != nullptr && given->sampling != nullptr) options.sampling = read_sampling(*given->sampling);
  check_sampling(options.sampling);
  if (given == nullptr) return options;
  require(given->max_new_tokens >= 0, "max_new_tokens is " + std::to_string(given->max_new_tokens) +
                                          "; give 1 or more, or 0 for what the model's file says");
  if (given->max_new_tokens > 0) options.max_new_tokens = given->max_new_tokens;
  require_array(given->stops, given->n_stops, "stops", "n_stops");
  for (size_t i = 0; i < given->n_stops; ++i) {
    const char* stop = given->stops[i];
    require(stop != nullptr && *stop != '\0', "stop string " + std::to_string(i) + " is NULL or empty");
    options.stops.push_back(stop);
  }
  return options;
}

void answer(ek_session& session, const Tokenizer& tokenizer, const std::vector<int32_t>& prompt,
            size_t n_cached, const GenerateOptions& options, ek_text_callback callback, void* user,
            ek_generation* result) {
  const auto show = [&](const std::string& text) {
    return callback == nullptr || callback(user, text.c_str(), text.size()) != 0;
  };
  const Generation done =
      generate(*session.core, *session.session, tokenizer,
               {prompt.begin() + static_cast<std::ptrdiff_t>(n_cached), prompt.end()}, options, show);
  if (result == nullptr) return;
  result->finish_reason = done.finish_reason;
  result->last_token = done.last_token;
  result->n_prompt = static_cast<int64_t>(prompt.size());
  result->n_cached = static_cast<int64_t>(n_cached);
  result->n_generated = done.n_generated;
  result->prefill_seconds = done.prefill_seconds;
  result->decode_seconds = done.decode_seconds;
}

}  // namespace

ek_status ek_generate(ek_session* session, const char* prompt, size_t n_bytes,
                      const ek_generate_options* options, ek_text_callback callback, void* user,
                      ek_generation* result) {
  return guarded([&] {
    require(session != nullptr, "session is NULL");
    require_array(prompt, n_bytes, "prompt", "n_bytes");
    if (result != nullptr) check_size(*result, "ek_generation");
    const std::shared_ptr<const Tokenizer> tokenizer = session->tokenizer->get(session->core->file());
    const GenerateOptions read =
        read_options(options, read_generation_config(bundle_of(session->core->file()), tokenizer->eos()));
    std::vector<int32_t> ids;
    tokenizer->encode({prompt, n_bytes}, session->session->cache.length() == 0, true, &ids);
    answer(*session, *tokenizer, ids, 0, read, callback, user, result);
  });
}

ek_status ek_chat(ek_session* session, const ek_message* messages, size_t n_messages,
                  const ek_generate_options* options, ek_text_callback callback, void* user,
                  ek_generation* result) {
  return guarded([&] {
    require(session != nullptr, "session is NULL");
    const std::vector<ChatMessage> conversation = read_messages(messages, n_messages);
    if (result != nullptr) check_size(*result, "ek_generation");
    Model& model = *session->core;
    const std::shared_ptr<const Tokenizer> tokenizer = session->tokenizer->get(model.file());
    const Bundle bundle = bundle_of(model.file());
    const GenerateOptions read = read_options(options, read_generation_config(bundle, tokenizer->eos()));
    std::vector<int32_t> ids;
    tokenizer->encode(read_chat_format(bundle).render(conversation, true), false, true, &ids);
    const size_t n_cached = keep_beginning(model, *session->session, ids);
    answer(*session, *tokenizer, ids, n_cached, read, callback, user, result);
  });
}
