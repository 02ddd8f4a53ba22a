// The thread pool: every unit once, sleeping workers wake, exceptions reach the caller. Run under
// ThreadSanitizer too.
#include "engine/thread_pool.h"

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "test.h"

using namespace edge_kit;

namespace {

void check_every_unit_once(int n_threads) {
  ThreadPool pool(n_threads);
  CHECK(pool.n_threads() == (n_threads < 1 ? 1 : n_threads));
  for (const int64_t n : {0, 1, 2, 3, 7, 64, 1001}) {
    std::vector<int> visits(static_cast<size_t>(n));  // plain ints: two threads on one unit are a data race
    std::atomic<int> parts{0};
    pool.parallel_for(n, [&](int64_t begin, int64_t end) {
      ++parts;
      for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
    });
    bool once = true;
    for (const int count : visits) once = once && count == 1;
    CHECK_CASE(once, std::to_string(n) + " units on " + std::to_string(n_threads));
    CHECK(parts <= pool.n_threads() && parts <= n);
  }
}

// Each region reads what the one before wrote, with pauses that let workers fall asleep.
void check_regions_follow(int n_threads) {
  ThreadPool pool(n_threads);
  std::vector<int64_t> values(static_cast<size_t>(pool.n_threads()), 0);
  const int regions = 3000;
  for (int region = 0; region < regions; ++region) {
    pool.run([&](int thread) { ++values[static_cast<size_t>((thread + region) % pool.n_threads())]; });
    if (region % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (const int64_t value : values) CHECK(value == regions);
}

// The caller is done long before the workers and falls asleep itself.
TEST(slow_workers) {
  ThreadPool pool(3);
  for (int region = 0; region < 20; ++region) {
    std::atomic<int> done{0};
    pool.run([&](int thread) {
      if (thread != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++done;
    });
    CHECK(done == 3);
  }
}

// The caller goes to sleep about when the worker ends.
TEST(the_last_worker_wakes_the_caller) {
  ThreadPool pool(2);
  int ended = 0;
  for (unsigned i = 0; i < 20000; ++i) {
    const auto length = std::chrono::nanoseconds(45000 + i * 7919 % 30000);  // the caller spins for 50 us
    pool.run([&](int thread) {
      if (thread == 0) return;
      const auto end = std::chrono::steady_clock::now() + length;
      while (std::chrono::steady_clock::now() < end) {
      }
      ++ended;
    });
  }
  CHECK(ended == 20000);
}

TEST(exceptions) {
  ThreadPool pool(3);
  for (int thrower = 0; thrower < 3; ++thrower) {
    std::string message;
    std::atomic<int> done{0};
    try {
      pool.run([&](int thread) {
        if (thread == thrower) throw std::runtime_error("thread " + std::to_string(thread));
        ++done;
      });
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
    CHECK(message == "thread " + std::to_string(thrower));
    CHECK(done == 2);
  }
  int calls = 0;  // the pool still works, and the old exception is gone
  pool.parallel_for(1, [&](int64_t, int64_t) { ++calls; });
  pool.run([](int) {});
  CHECK(calls == 1);
}

// A pool that is made and never used, or used from another thread than the one that made it.
TEST(lifetime) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(4);
  ThreadPool pool(2);
  std::atomic<int> calls{0};
  std::thread other([&] { pool.run([&](int) { ++calls; }); });
  other.join();
  pool.run([&](int) { ++calls; });
  CHECK(calls == 4);
}

TEST(every_unit_once) {
  for (const int n_threads : {0, 1, 2, 3, 5}) check_every_unit_once(n_threads);
}

TEST(regions_follow) {
  for (const int n_threads : {1, 2, 4}) check_regions_follow(n_threads);
}

}  // namespace

int main() { return edge_kit_test::run_tests(); }
