// The text calls of the C API.
#include <memory>
#include <string>
#include <vector>

#include "api/arguments.h"
#include "api/guard.h"
#include "api/handles.h"
#include "io/utf8.h"

struct ek_text_stream {
  std::shared_ptr<const edge_kit::Tokenizer> tokenizer;
  edge_kit::Utf8Stream utf8;
  std::string text;  // of the last token
};

using namespace edge_kit;

namespace {

constexpr uint32_t kTextFlags = EK_TEXT_BOS | EK_TEXT_SPECIAL;

std::shared_ptr<const Tokenizer> tokenizer_of(ek_model* model) {
  require(model != nullptr, "model is NULL");
  return model->tokenizer->get(model->core->file());
}

}  // namespace

ek_status ek_text_encode(ek_model* model, const char* text, size_t n_bytes, uint32_t flags, int32_t* ids,
                         size_t capacity, size_t* n_ids) {
  return guarded([&] {
    require(n_ids != nullptr, "n_ids is NULL");
    *n_ids = 0;
    require_array(text, n_bytes, "text", "n_bytes");
    require_array(ids, capacity, "ids", "capacity");
    require((flags & ~kTextFlags) == 0,
            "flags is " + std::to_string(flags) + "; known are 1 (BOS) and 2 (special)");
    std::vector<int32_t> found;
    tokenizer_of(model)->encode({text, n_bytes}, (flags & EK_TEXT_BOS) != 0, (flags & EK_TEXT_SPECIAL) != 0,
                                &found);
    copy_out(found, ids, capacity, n_ids);
  });
}

ek_status ek_text_decode(ek_model* model, const int32_t* ids, size_t n_ids, int32_t skip_special, char* text,
                         size_t capacity, size_t* n_bytes) {
  return guarded([&] {
    require(n_bytes != nullptr, "n_bytes is NULL");
    *n_bytes = 0;
    require_array(ids, n_ids, "ids", "n_ids");
    require_array(text, capacity, "text", "capacity");
    copy_out(tokenizer_of(model)->decode(ids, n_ids, skip_special != 0), text, capacity, n_bytes);
  });
}

ek_status ek_chat_render(ek_model* model, const ek_message* messages, size_t n_messages,
                         int32_t add_generation_prompt, char* text, size_t capacity, size_t* n_bytes) {
  return guarded([&] {
    require(n_bytes != nullptr, "n_bytes is NULL");
    *n_bytes = 0;
    require(model != nullptr, "model is NULL");
    require_array(text, capacity, "text", "capacity");
    const std::vector<ChatMessage> found = read_messages(messages, n_messages);
    const ChatFormat format = read_chat_format(bundle_of(model->core->file()));
    copy_out(format.render(found, add_generation_prompt != 0), text, capacity, n_bytes);
  });
}

ek_status ek_text_stream_create(ek_model* model, ek_text_stream** stream) {
  return guarded([&] {
    require(stream != nullptr, "stream is NULL");
    *stream = nullptr;
    auto created = std::make_unique<ek_text_stream>();
    created->tokenizer = tokenizer_of(model);
    *stream = created.release();
  });
}

void ek_text_stream_free(ek_text_stream* stream) { delete stream; }

ek_status ek_text_stream_add(ek_text_stream* stream, int32_t token, const char** text, size_t* n_bytes) {
  return guarded([&] {
    require(text != nullptr, "text is NULL");
    *text = "";
    if (n_bytes != nullptr) *n_bytes = 0;
    require(stream != nullptr, "stream is NULL");
    stream->text.clear();
    if (!stream->tokenizer->is_special(token)) {
      stream->utf8.add(stream->tokenizer->token_bytes(token), &stream->text);
    }
    *text = stream->text.c_str();
    if (n_bytes != nullptr) *n_bytes = stream->text.size();
  });
}

ek_status ek_text_stream_reset(ek_text_stream* stream) {
  return guarded([&] {
    require(stream != nullptr, "stream is NULL");
    stream->utf8.reset();
  });
}
