#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace edge_kit {

// A mutex that serves in order of arrival, so that a thread that decodes in a loop cannot starve the others.
// Works with std::unique_lock.
class FairMutex {
 public:
  void lock() {
    std::unique_lock<std::mutex> hold(mutex_);
    const uint64_t ticket = next_ticket_++;
    changed_.wait(hold, [&] { return ticket == now_serving_; });
  }

  void unlock() {
    {
      std::lock_guard<std::mutex> hold(mutex_);
      ++now_serving_;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t next_ticket_ = 0, now_serving_ = 0;
};

}  // namespace edge_kit
