// The calls on sessions.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/guard.h"
#include "api/handles.h"
#include "edge_kit.h"

using namespace edge_kit;

ek_status ek_session_create(ek_model* model, ek_session** session) {
  return guarded([&] {
    require(session != nullptr, "session is NULL");
    *session = nullptr;
    require(model != nullptr, "model is NULL");
    auto created = std::make_unique<ek_session>();
    created->session = model->core->create_session();
    created->core = model->core;
    *session = created.release();
  });
}

void ek_session_free(ek_session* session) {
  if (session == nullptr) return;
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
    auto created = std::make_unique<ek_session>();
    created->session = session->core->fork(*session->session);
    created->core = session->core;
    *fork = created.release();
  });
}

void ek_session_cancel(ek_session* session) {
  if (session != nullptr) session->session->cancelled.store(true);
}

ek_status ek_session_ids(const ek_session* session, int32_t* ids, size_t capacity, size_t* n_ids) {
  return guarded([&] {
    require(session != nullptr, "session is NULL");
    require(n_ids != nullptr, "n_ids is NULL");
    require(ids != nullptr || capacity == 0, "ids is NULL with capacity " + std::to_string(capacity));
    const std::vector<int32_t>& found = session->session->ids;
    *n_ids = found.size();
    if (found.size() <= capacity) std::copy(found.begin(), found.end(), ids);
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
    auto restored = std::make_unique<ek_session>();
    restored->session = model->core->restore(path);
    restored->core = model->core;
    *session = restored.release();
  });
}
