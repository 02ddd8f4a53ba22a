#include "engine/model.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>
#include <variant>

#include "engine/cpu.h"
#include "engine/step_access.h"
#include "io/status.h"
#include "plan/fingerprint.h"

namespace edge_kit {
namespace {

[[noreturn]] void invalid(const std::string& message) { throw Error(EK_ERR_INVALID_ARGUMENT, message); }

int64_t check_context(int64_t n_ctx) {
  if (n_ctx == 0) return kDefaultContext;
  if (n_ctx >= 1 && n_ctx <= kMaxContext) return n_ctx;
  invalid("n_ctx is " + std::to_string(n_ctx) + "; give 1 to " + std::to_string(kMaxContext) +
          " tokens, or 0 for the default of " + std::to_string(kDefaultContext));
}

KvLayout layout_of(const Plan& plan, const ModelOptions& options) {
  const KvType type = options.kv_type.value_or(options.exact ? KvType::kF32 : KvType::kF16);
  return {plan.n_layers, plan.n_kv_heads, plan.head_dim, type};
}

Plan checked(Plan plan, const ModelOptions& options) {
  check_plan(plan);
  require_memory(Executor::workspace_bytes(plan, options.exact, options.chunk_rows) +
                     layout_of(plan, options).block_bytes(),
                 "the workspace and a first block of the KV cache");
  return plan;
}

int64_t wanted_rows(const Segment& segment) {
  if (segment.logits == EK_LOGITS_ALL) return segment.n_ids;
  return segment.logits == EK_LOGITS_LAST ? 1 : 0;
}

// Linears are read in full for every token; of the embedding that lies before them only rows are.
void stream_linears(NbFile& file, const Plan& plan) {
  const uint8_t *const data = file.data(), *const data_end = data + file.size();
  const uint8_t *begin = data_end, *end = data;
  for (const Step& step : plan.steps) {
    const LinearStep* linear = std::get_if<LinearStep>(&step.op);
    if (linear == nullptr) continue;
    for (const Weight& w : linear->weights) {
      const uint8_t* weight = static_cast<const uint8_t*>(w.data);
      if (weight < data || weight >= data_end) continue;  // a copy, since the file held it unaligned
      begin = std::min(begin, weight);
      end = std::max(end, weight + w.n * w.k * static_cast<int64_t>(w.is_int8 ? 1 : sizeof(float)));
    }
  }
  if (begin < end) file.will_stream(begin, end);
}

}  // namespace

const Kernels& choose_kernels(const std::string& isa) {
  const char* variable = std::getenv("EDGE_KIT_ISA");
  const bool from_variable = isa.empty() && variable != nullptr && *variable != '\0';
  const std::string wanted = from_variable ? variable : isa;
  if (wanted.empty()) return *best_kernels();
  if (const Kernels* kernels = find_kernels(wanted.c_str())) return *kernels;
  std::string names;
  for (const char* const* name = available_kernels(); *name != nullptr; ++name) {
    names += (names.empty() ? "" : ", ") + std::string(*name);
  }
  invalid((from_variable ? "EDGE_KIT_ISA=" : "isa ") + wanted +
          " is not a kernel path that this CPU can run; it has " + names);
}

Model::Model(std::unique_ptr<NbFile> file, Plan plan, const ModelOptions& options)
    : file_(std::move(file)),
      plan_(checked(std::move(plan), options)),
      kernels_(choose_kernels(options.isa)),
      layout_(layout_of(plan_, options)),
      exact_(options.exact),
      pools_(layout_),
      n_ctx_(check_context(options.n_ctx)),
      chunk_rows_(options.chunk_rows),
      workspace_bytes_(Executor::workspace_bytes(plan_, options.exact, options.chunk_rows)),
      process_(getpid()),
      pool_(resolve_threads(options.n_threads)),
      executor_(plan_, kernels_, pool_, layout_, options.exact, options.chunk_rows) {
  if (file_ != nullptr) stream_linears(*file_, plan_);  // tests make plans of their own
  n_ids_ = plan_.n_vocab;
  for (const Step& step : plan_.steps) {
    if (const EmbeddingStep* embedding = std::get_if<EmbeddingStep>(&step.op))
      n_ids_ = std::min(n_ids_, embedding->n);
  }
}

std::unique_ptr<Session> Model::create_session() {
  return std::make_unique<Session>(this, KvCache(layout_, pools_));
}

std::unique_ptr<Session> Model::fork(const Session& session) {
  const auto turn = wait_for_turn();
  check_open();
  auto fork = std::make_unique<Session>(this, session.cache.fork());
  fork->ids = session.ids;
  return fork;
}

void Model::cut(Session& session, int64_t length) {
  const auto turn = wait_for_turn();
  check_open();
  if (length < 0 || length > session.cache.length()) {
    invalid("cannot cut a session of " + std::to_string(session.cache.length()) + " tokens to " +
            std::to_string(length));
  }
  session.cache.cut(length);
  session.ids.resize(static_cast<size_t>(length));
}

void Model::release(std::unique_ptr<Session> session) {
  const auto turn = wait_for_turn();
  session.reset();
}

SessionOrigin Model::origin() {
  std::call_once(fingerprint_taken_, [this] { fingerprint_ = fingerprint(plan_); });
  return {fingerprint_, exact_, layout_};
}

// The caller alone uses the session, so that forwards of others need not wait for the disk.
void Model::save(const Session& session, const std::string& path) {
  {
    const auto turn = wait_for_turn();
    check_open();
  }
  write_session(path, origin(), session.ids, session.cache);
}

std::unique_ptr<Session> Model::restore(const std::string& path) {
  const SessionFile file(path, origin(), n_ctx_);
  std::vector<int32_t> ids = file.read_ids(n_ids_);
  const auto turn = wait_for_turn();
  check_open();
  require_memory(file.cache_bytes(), "the KV cache of the saved session");
  std::unique_ptr<Session> session = create_session();
  file.read_cache(&session->cache);
  session->ids = std::move(ids);
  return session;
}

bool Model::in_its_process() const { return getpid() == process_; }

// A child of fork(2) has neither the threads nor whoever holds the mutex: it would wait forever.
std::unique_lock<FairMutex> Model::wait_for_turn() {
  if (!in_its_process())
    invalid("the model was opened before this process was forked: open it again in this process");
  return std::unique_lock<FairMutex>(mutex_);
}

void Model::close() {
  const auto turn = wait_for_turn();
  closed_ = true;
}

void Model::check_open() const {
  if (closed_) invalid("the session's model has been closed");
}

void Model::check_segments(const std::vector<Segment>& segments, size_t n_logits) const {
  if (segments.empty()) invalid("a forward needs at least one segment");
  std::vector<const Session*> sessions;
  int64_t wanted = 0;
  for (size_t s = 0; s < segments.size(); ++s) {
    const Segment& segment = segments[s];
    const std::string where = "segment " + std::to_string(s);
    if (segment.session == nullptr) invalid(where + " has no session");
    if (segment.session->owner != this) invalid(where + ": the session belongs to another model");
    if (segment.n_ids < 1)
      invalid(where + " has " + std::to_string(segment.n_ids) + " ids; it needs at least 1");
    if (segment.ids == nullptr) invalid(where + ": ids is NULL");
    if (segment.logits < EK_LOGITS_NONE || segment.logits > EK_LOGITS_ALL) {
      invalid(where + ": logits is " + std::to_string(segment.logits) +
              "; it must be 0 (none), 1 (last) or 2 (all)");
    }
    const int64_t length = segment.session->cache.length();
    if (segment.n_ids > n_ctx_ - length) {
      throw Error(EK_ERR_CONTEXT_FULL, where + ": the context is full: " + std::to_string(length) +
                                           " tokens and " + std::to_string(segment.n_ids) +
                                           " new ones need " + std::to_string(length + segment.n_ids) +
                                           ", the limit n_ctx is " + std::to_string(n_ctx_));
    }
    for (int64_t i = 0; i < segment.n_ids; ++i) {
      if (segment.ids[i] < 0 || segment.ids[i] >= n_ids_) {
        invalid(where + ": id " + std::to_string(segment.ids[i]) + " at index " + std::to_string(i) +
                " is outside the vocabulary of " + std::to_string(n_ids_));
      }
    }
    sessions.push_back(segment.session);
    wanted += wanted_rows(segment);
  }
  std::sort(sessions.begin(), sessions.end());
  if (std::adjacent_find(sessions.begin(), sessions.end()) != sessions.end()) {
    invalid("a session stands in the forward twice");
  }
  if (static_cast<uint64_t>(wanted) * static_cast<uint64_t>(plan_.n_vocab) > n_logits) {
    invalid("the logits need room for " + std::to_string(wanted) + " rows of " +
            std::to_string(plan_.n_vocab) + " floats, n_logits is " + std::to_string(n_logits));
  }
}

// Memory for all segments, or none; and their ids stand at the end of their sessions' now.
void Model::reserve(const std::vector<Segment>& segments) {
  int64_t bytes = 0;
  for (const Segment& segment : segments) {
    const KvCache& cache = segment.session->cache;
    bytes += cache.missing_bytes(cache.length() + segment.n_ids, chunk_rows_);
  }
  if (bytes > 0) require_memory(bytes, "the KV cache of the new tokens");
  for (const Segment& segment : segments) {
    std::vector<int32_t>& ids = segment.session->ids;
    ids.insert(ids.end(), segment.ids, segment.ids + segment.n_ids);
    segment.session->cache.reserve(static_cast<int64_t>(ids.size()));
  }
}

void Model::run(const Chunk& chunk, float* logits, const std::function<void()>& check_cancelled) {
  for (const Piece& piece : chunk.pieces) {
    piece.session->cache.open(piece.first_position, piece.first_position + piece.rows);
  }
  executor_.run(chunk, logits, check_cancelled);
  for (const Piece& piece : chunk.pieces) piece.session->cache.settle(piece.first_position + piece.rows);
}

void Model::forward(const std::vector<Segment>& segments, float* logits, size_t n_logits) {
  const auto turn = wait_for_turn();
  check_open();
  if (profile_ != nullptr) profile_->start();
  check_segments(segments, n_logits);
  const auto check_cancelled = [&segments] {
    bool cancelled = false;
    for (const Segment& segment : segments) {
      // A plain load first: it is looked at once per layer, and almost never set.
      if (segment.session->cancelled.load()) cancelled |= segment.session->cancelled.exchange(false);
    }
    if (cancelled) throw Error(EK_ERR_CANCELLED, "the forward was cancelled; no cache has changed");
  };
  const auto give_up = [&segments] {
    for (const Segment& segment : segments) {
      Session& session = *segment.session;
      session.cache.give_up();
      session.ids.resize(static_cast<size_t>(session.cache.length()));
    }
  };
  try {
    check_cancelled();
    reserve(segments);
    for (const Chunk& chunk : cut_into_chunks(segments, chunk_rows_)) {
      run(chunk, logits, check_cancelled);
      logits += static_cast<int64_t>(chunk.wanted.size()) * plan_.n_vocab;
    }
  } catch (const std::bad_alloc&) {
    give_up();
    throw Error(EK_ERR_OUT_OF_MEMORY, "the system refused memory for the KV cache; it says that " +
                                          format_bytes(available_memory()) + " are available");
  } catch (...) {
    give_up();
    throw;
  }
  for (const Segment& segment : segments) {
    Session& session = *segment.session;
    session.cache.commit(static_cast<int64_t>(session.ids.size()));
  }
  if (profile_ != nullptr) profile_->lap_other();
}

void Model::start_profile() {
  const auto turn = wait_for_turn();
  check_open();
  profile_ = std::make_unique<Profile>(plan_, layout_.bytes_per_token() / layout_.n_layers);
  executor_.set_profile(profile_.get());
}

// How many steps ran; unless there is room for all, nothing is taken.
size_t Model::take_profile(ek_profile_entry* entries, size_t capacity) {
  const auto turn = wait_for_turn();
  check_open();
  if (profile_ == nullptr) invalid("no profile is being taken: start one first");
  const std::vector<const Profile::Entry*> ran = profile_->ran();
  if (capacity < ran.size()) return ran.size();
  for (const Profile::Entry* entry : ran) {
    *entries++ = {sizeof(ek_profile_entry), entry->kind,  entry->name.c_str(), entry->calls,
                  entry->seconds,           entry->bytes, entry->operations};
  }
  profile_->reset();
  return ran.size();
}

void Model::stop_profile() {
  const auto turn = wait_for_turn();
  executor_.set_profile(nullptr);
  profile_.reset();
}

double Model::read_bandwidth() {
  const auto turn = wait_for_turn();
  check_open();
  if (file_ == nullptr) throw Error(EK_ERR_INVALID_ARGUMENT, "the model has no file to read");
  if (read_loop_.kernels == nullptr) read_loop_ = find_read_loop(file_->data(), file_->size(), pool_);
  return edge_kit::read_bandwidth(read_loop_, file_->data(), file_->size(), pool_);
}

}  // namespace edge_kit
