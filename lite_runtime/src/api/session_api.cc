// The calls on sessions.
#include <memory>
#include <string>
#include <utility>

#include "api/arguments.h"
#include "api/guard.h"
#include "api/handles.h"
#include "edge_kit.h"

using namespace edge_kit;

namespace {

// `session()` makes the engine's. It comes last: from then on nothing can fail, and only Model::release may
// free it.
template <typename Make>
ek_session* make_session(const std::shared_ptr<Model>& core, const std::shared_ptr<LazyTokenizer>& tokenizer,
                         const Make& session) {
  auto created = std::make_unique<ek_session>();
  created->core = core;
  created->tokenizer = tokenizer;
  created->session = session();
  return created.release();
}

}  // namespace

ek_status ek_session_create(ek_model* model, ek_session** session) {
  return guarded([&] {
    require(session != nullptr, "session is NULL");
    *session = nullptr;
    require(model != nullptr, "model is NULL");
    *session = make_session(model->core, model->tokenizer, [&] { return model->core->create_session(); });
  });
}

void ek_session_free(ek_session* session) {
  if (session == nullptr || !session->core->in_its_process()) return;
  guarded([&] { session->core->release(std::move(session->session)); });
  delete session;
}

int64_t ek_session_length(const ek_session* session) {
  return session != nullptr ? session->session->cache.length() : 0;
}

ek_status ek_session_cut(ek_session* session, int64_t length) {
  return guarded([&] {
    require(session != nullptr, "session is NULL");
    session->core->cut(*session->session, length);
  });
}

ek_status ek_session_fork(const ek_session* session, ek_session** fork) {
  return guarded([&] {
    require(fork != nullptr, "fork is NULL");
    *fork = nullptr;
    require(session != nullptr, "session is NULL");
    *fork = make_session(session->core, session->tokenizer,
                         [&] { return session->core->fork(*session->session); });
  });
}

void ek_session_cancel(ek_session* session) {
  if (session != nullptr) session->session->cancelled.store(true);
}

ek_status ek_session_ids(const ek_session* session, int32_t* ids, size_t capacity, size_t* n_ids) {
  return guarded([&] {
    require(n_ids != nullptr, "n_ids is NULL");
    *n_ids = 0;
    require(session != nullptr, "session is NULL");
    require_array(ids, capacity, "ids", "capacity");
    copy_out(session->session->ids, ids, capacity, n_ids);
  });
}

ek_status ek_session_save(const ek_session* session, const char* path) {
  return guarded([&] {
    require(session != nullptr, "session is NULL");
    require(path != nullptr, "path is NULL");
    session->core->save(*session->session, path);
  });
}

ek_status ek_session_restore(ek_model* model, const char* path, ek_session** session) {
  return guarded([&] {
    require(session != nullptr, "session is NULL");
    *session = nullptr;
    require(model != nullptr, "model is NULL");
    require(path != nullptr, "path is NULL");
    *session = make_session(model->core, model->tokenizer, [&] { return model->core->restore(path); });
  });
}
