#include "thread_pool.h"

#include <chrono>
#include <utility>

namespace edge_kit {
namespace {

// Longer than the gap between two regions of a forward, short enough to leave an idle core alone.
constexpr std::chrono::microseconds kSpin(50);

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// True once ready() holds, false after kSpin without.
template <typename F>
bool spin_until(const F& ready) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

}  // namespace

ThreadPool::ThreadPool(int n_threads) : n_threads_(n_threads < 1 ? 1 : n_threads) {
  try {
    for (int thread = 1; thread < n_threads_; ++thread)
      workers_.emplace_back([this, thread] { work(thread); });
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    ++generation_;
  }
  region_started_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::call(int thread) {
  try {
    (*task_)(thread);
  } catch (...) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

// Sleeping, on either side: the sleeper first says so, then looks at the counter once more; the other side
// first changes the counter, then looks for sleepers. One of the two sees the other (all four are seq_cst).
// What comes first is a read-modify-write, not a store: qemu 7.2 lets an ARM store-release pass a later
// load-acquire, and both sides would sleep.
void ThreadPool::run(TaskRef<int> task) {
  task_ = &task;
  unfinished_ = n_threads_ - 1;
  ++generation_;
  if (sleeping_workers_ > 0) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
    }  // a worker that is about to sleep holds it
    region_started_.notify_all();
  }
  call(0);
  const auto done = [this] { return unfinished_ == 0; };
  if (!spin_until(done)) {
    std::unique_lock<std::mutex> lock(mutex_);
    caller_sleeps_.exchange(true);
    region_done_.wait(lock, done);
    caller_sleeps_ = false;
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::work(int thread) {
  uint32_t seen = 0;
  for (;;) {
    const auto started = [this, seen] { return generation_ != seen; };
    if (!spin_until(started)) {
      std::unique_lock<std::mutex> lock(mutex_);
      ++sleeping_workers_;
      region_started_.wait(lock, started);
      --sleeping_workers_;
    }
    ++seen;
    if (stopping_) return;
    call(thread);
    if (--unfinished_ == 0 && caller_sleeps_) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
      }
      region_done_.notify_one();
    }
  }
}

void ThreadPool::parallel_for(int64_t n_units, TaskRef<int64_t, int64_t> task) {
  const int64_t parts = n_units < n_threads_ ? n_units : n_threads_;
  if (parts <= 1) {
    if (n_units > 0) task(0, n_units);
    return;
  }
  run([&](int thread) {
    if (thread < parts) task(n_units * thread / parts, n_units * (thread + 1) / parts);
  });
}

}  // namespace edge_kit
