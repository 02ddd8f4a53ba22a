/* edge-kit runtime: C API.
 *
 * Every call returns a status; the text of the calling thread's last error is ek_last_error(), which lives
 * until that thread's next error. The library never aborts, never throws and never prints.
 *
 * Who owns what
 *   - What *_open, *_create, *_fork and *_restore give belongs to the caller, who frees it with the call of
 *     its kind: ek_model_close, ek_session_free, ek_text_stream_free. NULL is fine there. Sessions are freed
 *     before their model; what computes or changes a session whose model was closed fails.
 *   - What is passed in is borrowed for the call, except the region of ek_model_open_memory, which must
 *     outlive the model.
 *   - Texts and arrays go into memory of the caller. A call with a `capacity` returns EK_OK with less room than
 *     needed too, but then gives the size alone: compare, and call again.
 *   - Pointers that a call gives back say how long they live.
 *
 * Which call may come from which thread
 *   - A model may be used from any number of threads; forwards queue in order of arrival.
 *   - A session or a text stream is used by one thread at a time, any thread. Only ek_session_cancel may come
 *     while another call on the session runs; it is also safe in a signal handler. It is looked at before
 *     every chunk of a prompt, every layer and every token.
 *   - ek_model_close and ek_*_free must be the last call on what they free.
 *   - Everything without a model or a session may come from any thread.
 *   - A child of fork(2) opens its own model: in it, what computes or changes a session of the parent's model
 *     fails, and freeing them does nothing.
 *
 * Structs begin with struct_size, which the caller sets to sizeof the struct; a library of another size
 * refuses it.
 */
#ifndef EDGE_KIT_H_
#define EDGE_KIT_H_

#include <stddef.h>
#include <stdint.h>

#define EK_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

#define EK_ABI_VERSION 2

typedef enum ek_status {
  EK_OK = 0,
  EK_ERR_INVALID_ARGUMENT = 1,
  EK_ERR_IO = 2,            /* the file cannot be read, or not be written */
  EK_ERR_FORMAT = 3,        /* not a .nb or session file, or a damaged one */
  EK_ERR_NOT_SUPPORTED = 4, /* a sound file with something that this runtime lacks */
  EK_ERR_OUT_OF_MEMORY = 5,
  EK_ERR_CONTEXT_FULL = 6,
  EK_ERR_CANCELLED = 7,
  EK_ERR_INTERNAL = 8,
  EK_ERR_MISMATCH = 9       /* a session file of another model, mode or kind of cache */
} ek_status;

typedef struct ek_model ek_model;
typedef struct ek_session ek_session;
typedef struct ek_text_stream ek_text_stream;

typedef enum ek_mode {
  EK_MODE_INT8 = 0,  /* activations quantized in groups of 64, fp16 or int8 cache */
  EK_MODE_EXACT = 1  /* fp32 activations and cache: what the file's ops say literally */
} ek_mode;

typedef enum ek_kv_dtype {
  EK_KV_DEFAULT = 0, /* the mode's: fp16, fp32 in exact mode */
  EK_KV_F16 = 1,
  EK_KV_INT8 = 2     /* int8 once a block of 64 tokens is full: half the memory of fp16 */
} ek_kv_dtype;

typedef struct ek_options {
  uint32_t struct_size;  /* sizeof(ek_options) */
  int32_t n_threads;     /* 0 = default for this machine */
  int64_t n_ctx;         /* 0 = the model's limit, at most 32768; more than the limit is taken as given */
  int32_t mode;          /* ek_mode */
  const char* isa;       /* NULL = EDGE_KIT_ISA, else the best */
  int32_t kv_dtype;      /* ek_kv_dtype */
} ek_options;

typedef struct ek_model_info {
  uint32_t struct_size;          /* sizeof(ek_model_info), set by the caller */
  int32_t n_threads;
  int64_t n_ctx;
  int64_t n_vocab;
  int64_t n_layers;
  int64_t hidden_size;
  int64_t n_heads;
  int64_t n_kv_heads;
  int64_t head_dim;
  int64_t parameter_bytes_per_token; /* bytes of weights read to decode one token */
  int64_t kv_bytes_per_token;
  int64_t file_bytes;
  int64_t workspace_bytes;       /* of memory beside the file and the cache, once a long prompt has run */
  const char* isa;               /* kernel path taken; static storage */
  const char* opt_version;       /* as written in the file; lives as long as the model */
} ek_model_info;

typedef enum ek_logits { EK_LOGITS_NONE = 0, EK_LOGITS_LAST = 1, EK_LOGITS_ALL = 2 } ek_logits;

/* One session's rows in a forward. A session may stand in a forward once. */
typedef struct ek_segment {
  ek_session* session;
  const int32_t* ids;  /* [n_ids] */
  int64_t n_ids;       /* >= 1 */
  int32_t logits;      /* ek_logits */
} ek_segment;

/* Zeros are no defaults here: top_p and repetition_penalty must be set. */
typedef struct ek_sampling {
  uint32_t struct_size;      /* sizeof(ek_sampling) */
  float temperature;         /* 0 = greedy: the lowest id among the largest logits */
  int32_t top_k;             /* 0 = off */
  float top_p;               /* 1 = off; 0 = the likeliest token alone */
  float min_p;               /* 0 = off */
  float repetition_penalty;  /* 1 = off */
  uint64_t seed;
} ek_sampling;

typedef enum ek_step_kind {
  EK_STEP_OTHER = 0,         /* what a forward does between its steps */
  EK_STEP_EMBEDDING = 1,
  EK_STEP_NORM = 2,
  EK_STEP_QUANTIZATION = 3,  /* of a linear's input */
  EK_STEP_LINEAR = 4,
  EK_STEP_ROPE = 5,
  EK_STEP_CACHE = 6,         /* new keys and values are stored */
  EK_STEP_ATTENTION = 7,
  EK_STEP_ACTIVATION = 8,
  EK_STEP_ADD = 9
} ek_step_kind;

/* One step of the plan over all profiled forwards. */
typedef struct ek_profile_entry {
  uint32_t struct_size;  /* sizeof(ek_profile_entry), set by the caller in the first of an array */
  int32_t kind;          /* ek_step_kind */
  const char* name;      /* as in the file; linears that share their input: all names, with " + " between */
  int64_t calls;
  double seconds;        /* on the clock, of the thread that called */
  int64_t bytes;         /* read of weights, tables and cache */
  int64_t operations;    /* multiply-adds of linears and attention */
} ek_profile_entry;

/* Flags of ek_text_encode. */
typedef enum ek_text_flags {
  EK_TEXT_BOS = 1,     /* one beginning-of-sequence token in front, where the model has it and the text does
                          not begin with it. Not for a rendered chat template, which writes its own. */
  EK_TEXT_SPECIAL = 2  /* special tokens written in the text, such as <|im_end|>, become their ids. Without,
                          they are plain text: for text that is not to be trusted. */
} ek_text_flags;

/* One message of a conversation: UTF-8 with a NUL at the end, borrowed for the call. */
typedef struct ek_message {
  const char* role;     /* "system", "user" or "assistant" */
  const char* content;  /* broken bytes count as U+FFFD */
} ek_message;

EK_API uint32_t ek_abi_version(void);
EK_API const char* ek_version(void);
EK_API const char* ek_last_error(void);
/* Names of the kernel paths this CPU can run, best first; NULL past the end. Static storage. */
EK_API const char* ek_isa_name(int32_t index);

EK_API ek_status ek_model_open(const char* path, const ek_options* options, ek_model** model);
/* The region is borrowed, only read, and must outlive the model. It should begin on a 64-byte boundary, as a
 * mapping does: fp32 tensors that are not aligned are copied. */
EK_API ek_status ek_model_open_memory(const void* data, size_t size, const ek_options* options,
                                      ek_model** model);
EK_API void ek_model_close(ek_model* model);
EK_API ek_status ek_model_get_info(const ek_model* model, ek_model_info* info);

EK_API ek_status ek_session_create(ek_model* model, ek_session** session);
EK_API void ek_session_free(ek_session* session);
EK_API int64_t ek_session_length(const ek_session* session);
/* Keeps the first `length` tokens of the cache. What an int8 cache has to compute again for that (at most
 * 63 tokens, and none for a first cut of 64 or less) the next forward does. */
EK_API ek_status ek_session_cut(ek_session* session, int64_t length);
/* A second session with the same cache content; full blocks are shared.
 * A pending cancel stays with the first. */
EK_API ek_status ek_session_fork(const ek_session* session, ek_session** fork);
/* Makes the running or the next ek_forward of the session return EK_ERR_CANCELLED; ek_generate and ek_chat
 * return EK_OK with EK_FINISH_CANCELLED. An answer that ends by itself meanwhile uses it up. Any thread. */
EK_API void ek_session_cancel(ek_session* session);

/* The token ids in the cache. `n_ids` receives their number, the session's length; with less room (capacity
 * 0, ids NULL) nothing is written. */
EK_API ek_status ek_session_ids(const ek_session* session, int32_t* ids, size_t capacity, size_t* n_ids);
/* Writes the session's token ids and cache. The file appears whole or not at all, and an older one stays
 * until then: it is written beside its place, under a name that ends in ".tmp". It is for its owner alone; an
 * older file's permissions stay, and a link: what it points to is replaced. Forwards of other sessions go on
 * meanwhile. EK_ERR_IO with the system's reason. */
EK_API ek_status ek_session_save(const ek_session* session, const char* path);
/* A new session of `model` with what the file holds, which goes on just as the saved one; kernel path and
 * threads need not be the same. EK_ERR_FORMAT: no session file, or a damaged one; EK_ERR_MISMATCH: one of
 * another model, mode or kv_dtype; EK_ERR_CONTEXT_FULL: longer than the model's n_ctx. */
EK_API ek_status ek_session_restore(ek_model* model, const char* path, ek_session** session);

/* Runs all segments in one pass and appends to their caches. `logits` receives, segment by segment, 0, 1 or
 * n_ids rows of n_vocab floats; n_logits is its size in floats. On failure no cache has changed. */
EK_API ek_status ek_forward(ek_model* model, const ek_segment* segments, size_t n_segments, float* logits,
                            size_t n_logits);

/* Draws a token from logits [n_vocab]. `history` [n_history] feeds the repetition penalty. The random number
 * depends on (seed, position) alone. */
EK_API ek_status ek_sample(const float* logits, int64_t n_vocab, const ek_sampling* sampling,
                           const int32_t* history, int64_t n_history, uint64_t position, int32_t* token);

/* Reads at least 1 GB of the mapped file (a smaller one again and again) with the model's threads; bytes per
 * second. The first call looks for the best of all loop variants, over 9 GB on x86-64; later ones use that. */
EK_API ek_status ek_model_read_bandwidth(ek_model* model, double* bytes_per_second);

/* The same over memory of the caller: at least 4096 bytes a thread, better 1 GB. n_threads 0 = the default. */
EK_API ek_status ek_read_bandwidth(const void* data, size_t size, int32_t n_threads,
                                   double* bytes_per_second);

/* Int8 multiply-adds per second that a kernel path can do on n_threads at most: its multiplication over
 * registers alone, for 30 ms or more. isa NULL = EDGE_KIT_ISA, else the best; n_threads 0 = the default. */
EK_API ek_status ek_multiply_peak(const char* isa, int32_t n_threads, double* operations_per_second);

/* From here on forwards note what each step takes; without, they spend nothing on it. A profile that runs
 * already begins anew. */
EK_API ek_status ek_model_profile_start(ek_model* model);
/* Takes what was noted since the start, or since it was taken last: the steps that ran, in the order of the
 * plan. `n_entries` receives their number; with less room (capacity 0, entries NULL) nothing is taken. Names
 * live until the profile is started again or stopped, or the model closed. */
EK_API ek_status ek_model_profile_take(ek_model* model, ek_profile_entry* entries, size_t capacity,
                                       size_t* n_entries);
EK_API ek_status ek_model_profile_stop(ek_model* model);

/* Text to token ids and back by the tokenizer in the model's file, which is read at the first of these calls.
 * EK_ERR_NOT_SUPPORTED: the file has none, or one with a part that the message names. Any thread. */

/* Token ids of UTF-8 text; broken bytes count as U+FFFD. `flags`: ek_text_flags. `n_ids` receives their
 * number, 3 * n_bytes + 1 at most; with less room (capacity 0, ids NULL) nothing is written. */
EK_API ek_status ek_text_encode(ek_model* model, const char* text, size_t n_bytes, uint32_t flags,
                                int32_t* ids, size_t capacity, size_t* n_ids);
/* UTF-8 text of token ids, bytes that are no UTF-8 replaced by U+FFFD. Ids that stand for nothing are left
 * out, special tokens if skip_special is not 0. `n_bytes` receives the size; with less room nothing is
 * written. No NUL is added. */
EK_API ek_status ek_text_decode(ek_model* model, const int32_t* ids, size_t n_ids, int32_t skip_special,
                                char* text, size_t capacity, size_t* n_bytes);

/* The text that the model's chat template makes of a conversation (n_messages >= 1), with or without the
 * prompt for an answer at its end. Encode it with EK_TEXT_SPECIAL and without EK_TEXT_BOS; contents go into
 * it as they are, and so do special tokens that they spell. `n_bytes` receives the size; with less room
 * nothing is written. No NUL is added. Any thread. EK_ERR_NOT_SUPPORTED: the model has no template, or one
 * that the export could not reduce to fixed pieces around each role. Text that was rendered elsewhere still
 * works. EK_ERR_INVALID_ARGUMENT: messages that such pieces do not cover, such as another role; the error
 * says which message and why. */
EK_API ek_status ek_chat_render(ek_model* model, const ek_message* messages, size_t n_messages,
                                int32_t add_generation_prompt, char* text, size_t capacity, size_t* n_bytes);

/* Text of tokens as they come. A stream is used by one thread at a time, and may outlive its model. */
EK_API ek_status ek_text_stream_create(ek_model* model, ek_text_stream** stream);
EK_API void ek_text_stream_free(ek_text_stream* stream);
/* `text` receives what became certain with `token`: whole characters, none for a special token or inside of
 * a character. It ends with a NUL, has n_bytes before it (n_bytes may be NULL) and lives until the next call.
 * All texts together are what ek_text_decode gives, but for an unfinished character at the end. */
EK_API ek_status ek_text_stream_add(ek_text_stream* stream, int32_t token, const char** text,
                                    size_t* n_bytes);
/* Forgets an unfinished character, for a next text. */
EK_API ek_status ek_text_stream_reset(ek_text_stream* stream);

typedef enum ek_finish_reason {
  EK_FINISH_STOP = 0,      /* an end token of the model, or a stop string */
  EK_FINISH_LENGTH = 1,    /* max_new_tokens, or the context is full */
  EK_FINISH_CANCELLED = 2, /* ek_session_cancel */
  EK_FINISH_CALLBACK = 3   /* the callback returned 0 */
} ek_finish_reason;

typedef struct ek_generate_options {
  uint32_t struct_size;         /* sizeof(ek_generate_options) */
  int64_t max_new_tokens;       /* 0 = as the file's generation_config.json says, else what the context holds */
  const ek_sampling* sampling;  /* NULL = as generation_config.json says, else greedy; seed 0 */
  const char* const* stops;     /* [n_stops] stop strings with a NUL, not empty; their text is not shown */
  size_t n_stops;
} ek_generate_options;

typedef struct ek_generation {
  uint32_t struct_size;    /* sizeof(ek_generation), set by the caller */
  int32_t finish_reason;   /* ek_finish_reason */
  int32_t last_token;      /* of the answer, which the session does not hold; -1 = there was none. To go on
                              exactly there, give it to ek_forward. */
  int64_t n_prompt;        /* tokens of the prompt */
  int64_t n_cached;        /* of those, how many the session held already */
  int64_t n_generated;
  double prefill_seconds;  /* until the first new token is known */
  double decode_seconds;   /* for the others */
} ek_generation;

/* Receives the text of an answer as it becomes certain: n_bytes >= 1 of whole characters, with a NUL behind
 * them, for the time of the call. Return 0 to end the answer, anything else to go on. Comes on the thread
 * that called ek_generate or ek_chat, and must not use that session, but to cancel it; it may use others. */
typedef int (*ek_text_callback)(void* user, const char* text, size_t n_bytes);

/* Appends the prompt (UTF-8) and the answer to the session. The prompt is tokenized as it is: special tokens
 * written in it are found, and at the start of a session one beginning-of-sequence token is set in front,
 * where the model has it. For text that is not to be trusted: ek_text_encode without EK_TEXT_SPECIAL,
 * ek_forward, ek_sample. `options` NULL = the defaults; `callback` and `result` may be NULL. The last token
 * of the answer is not in the session: it was no input. What else there was of a stop string is. A cancelled
 * prompt leaves the session as it was. */
EK_API ek_status ek_generate(ek_session* session, const char* prompt, size_t n_bytes,
                             const ek_generate_options* options, ek_text_callback callback, void* user,
                             ek_generation* result);

/* The model's answer to a conversation (n_messages >= 1), as ek_chat_render writes it. What the session holds
 * of its beginning already, token by token, is not computed again; the rest of the session is dropped. So one
 * session serves a whole conversation: append the answer to the messages, and the next question.
 * EK_ERR_NOT_SUPPORTED: see ek_chat_render. */
EK_API ek_status ek_chat(ek_session* session, const ek_message* messages, size_t n_messages,
                         const ek_generate_options* options, ek_text_callback callback, void* user,
                         ek_generation* result);

#ifdef __cplusplus
}
#endif

#endif /* EDGE_KIT_H_ */
