// A fixed set of threads for the parallel regions of a forward: some 200 short ones per token.
//
// Owner: the pool owns its workers; the destructor joins them. Threads: one caller at a time runs a region
// and takes part in it; a task must not start another region on the same pool.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace edge_kit {

// A borrowed callable: no allocation, valid as long as what it was made from.
template <typename... Args>
class TaskRef {
 public:
  template <typename F, typename = std::enable_if_t<!std::is_same_v<std::decay_t<F>, TaskRef>>>
  TaskRef(const F& f)  // NOLINT: implicit, so that a lambda can be passed
      : callable_(&f),
        call_([](const void* callable, Args... args) { (*static_cast<const F*>(callable))(args...); }) {}
  void operator()(Args... args) const { call_(callable_, args...); }

 private:
  const void* callable_;
  void (*call_)(const void*, Args...);
};

class ThreadPool {
 public:
  // n_threads >= 1 counts the caller; smaller numbers are taken as 1. Throws std::system_error if a thread
  // cannot be started.
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_threads() const { return n_threads_; }

  // task(thread) once on every thread, 0 on the caller. Returns when all are done; rethrows one of the
  // exceptions that tasks threw.
  void run(TaskRef<int> task);

  // task(begin, end) over [0, n_units), cut into one contiguous part per thread (so that each thread reads
  // one stream of weights). Threads without a unit are not called.
  void parallel_for(int64_t n_units, TaskRef<int64_t, int64_t> task);

 private:
  void work(int thread);
  void call(int thread);
  void stop();

  const int n_threads_;
  const TaskRef<int>* task_ = nullptr;  // of the running region; published by generation_
  std::exception_ptr error_;            // first of the region, under mutex_
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable region_started_, region_done_;
  bool stopping_ = false;                            // published by generation_
  alignas(64) std::atomic<uint32_t> generation_{0};  // counts regions
  std::atomic<int> sleeping_workers_{0};
  alignas(64) std::atomic<int> unfinished_{0};  // workers still in the region
  std::atomic<bool> caller_sleeps_{false};
};

}  // namespace edge_kit
