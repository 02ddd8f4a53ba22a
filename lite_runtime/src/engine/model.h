// A model ready to run: the file, its plan, the kernels, the threads and the workspace.
//
// Threads: all methods may be called from any thread; forwards, and what else changes a session, queue in
// order of arrival. Owner: a Model owns all it was given; sessions are owned by whoever created them and must
// not be used after their model is gone.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/bandwidth.h"
#include "engine/chunk.h"
#include "engine/executor.h"
#include "engine/fair_mutex.h"
#include "engine/kv_cache.h"
#include "engine/profile.h"
#include "engine/session.h"
#include "engine/session_file.h"
#include "engine/thread_pool.h"
#include "io/nb_file.h"
#include "kernels/kernels.h"
#include "plan/plan.h"

namespace edge_kit {

constexpr int64_t kDefaultContext = 32768;
constexpr int64_t kMaxContext = int64_t{1} << 24;  // fp32 counts positions exactly up to here

struct ModelOptions {
  int n_threads = 0;   // 0 = default_threads()
  int64_t n_ctx = 0;   // 0 = kDefaultContext
  bool exact = false;  // fp32 activations
  std::optional<KvType> kv_type;  // empty = fp16, fp32 with exact
  std::string isa;     // empty = EDGE_KIT_ISA, else the best
  int64_t chunk_rows = kChunkRows;
};

// The path called `isa`; empty = what EDGE_KIT_ISA names, else the best. Any other: EK_ERR_INVALID_ARGUMENT.
const Kernels& choose_kernels(const std::string& isa);

class Model {
 public:
  // `file` holds what the plan points to; it may be null when that lives elsewhere.
  Model(std::unique_ptr<NbFile> file, Plan plan, const ModelOptions& options);

  const Plan& plan() const { return plan_; }
  const NbFile* file() const { return file_.get(); }
  const Kernels& kernels() const { return kernels_; }
  const KvLayout& kv_layout() const { return layout_; }
  int n_threads() const { return pool_.n_threads(); }
  int64_t n_ctx() const { return n_ctx_; }
  int64_t workspace_bytes() const { return workspace_bytes_; }

  std::unique_ptr<Session> create_session();
  std::unique_ptr<Session> fork(const Session& session);
  void cut(Session& session, int64_t length);
  void release(std::unique_ptr<Session> session);
  // See ek_session_save and ek_session_restore.
  void save(const Session& session, const std::string& path);
  std::unique_ptr<Session> restore(const std::string& path);

  // See ek_forward. Throws Error and leaves every cache as it was.
  void forward(const std::vector<Segment>& segments, float* logits, size_t n_logits);

  // Bytes per second at which the model's threads read the file by the loop that was the fastest at first.
  double read_bandwidth();

  // From here on forwards are profiled, in exchange for a clock reading per step; see ek_model_profile_start.
  void start_profile();
  size_t take_profile(ek_profile_entry* entries, size_t capacity);
  void stop_profile();

  // Waits for the running forward; whatever is called later is refused.
  void close();
  // False in a child of fork(2), where the model cannot run, nor be destroyed.
  bool in_its_process() const;

 private:
  std::unique_lock<FairMutex> wait_for_turn();
  void check_segments(const std::vector<Segment>& segments, size_t n_logits) const;
  void check_open() const;
  SessionOrigin origin();
  void reserve(const std::vector<Segment>& segments);
  void run(const Chunk& chunk, float* logits, const std::function<void()>& check_cancelled);

  const std::unique_ptr<NbFile> file_;
  const Plan plan_;
  const Kernels& kernels_;
  const KvLayout layout_;
  const bool exact_;
  KvPools pools_;
  const int64_t n_ctx_, chunk_rows_, workspace_bytes_;
  const pid_t process_;
  int64_t n_ids_ = 0;  // rows of the embedding
  std::once_flag fingerprint_taken_;
  uint64_t fingerprint_ = 0;
  bool closed_ = false;
  FairMutex mutex_;
  ThreadPool pool_;
  Executor executor_;
  std::unique_ptr<Profile> profile_;
  ReadLoop read_loop_{};  // without kernels until it is known
};

}  // namespace edge_kit
