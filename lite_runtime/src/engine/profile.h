// Time, bytes and multiplications of each step of a plan.
//
// Clocks are read on the calling thread alone: every moment of a forward is credited to the step it ends.
// Where steps are done row by row on several threads, the region's time is divided as the calling thread's
// rows say. Threads: used under the model's lock; within a region `lap_row` may come from any of its threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "edge_kit.h"
#include "engine/chunk.h"
#include "plan/plan.h"

namespace edge_kit {

class Profile {
 public:
  struct Entry {
    std::string name;      // of the step; of a linear, all its weights' names
    ek_step_kind kind = EK_STEP_OTHER;
    int64_t calls = 0;
    double seconds = 0;
    int64_t bytes = 0;       // of weights, tables and cache
    int64_t operations = 0;  // multiply-adds of linears and attention
  };

  // `plan` is borrowed. `cache_bytes`: of one token's keys and values in one layer.
  Profile(const Plan& plan, int64_t cache_bytes);

  void start();       // a forward begins on this thread
  void lap_other();   // what belongs to no step is done
  void lap_angles();  // cos and sin of RoPE are done
  void begin_rows(size_t begin, size_t end);  // the row-wise parts of steps [begin, end), row by row
  void lap_row(size_t step);
  void end_rows(size_t begin, size_t end, int64_t rows);
  // Of an MLP run as one, the time of gate and up includes their activation and its quantization.
  void lap_linear(size_t step, int64_t rows);
  void lap_attention(size_t step, const Chunk& chunk);

  // Steps that ran since the profile was made or reset, in the order of the plan.
  std::vector<const Entry*> ran() const;
  void reset();

 private:
  using Clock = std::chrono::steady_clock;

  double elapsed();  // seconds since the last lap, which this is
  void credit(size_t slot, double seconds, int64_t bytes, int64_t operations);
  size_t main_part(size_t step) const { return plan_.steps.size() + step; }
  size_t angles() const { return 2 * plan_.steps.size(); }
  size_t other() const { return angles() + 1; }

  const Plan& plan_;
  const int64_t cache_bytes_;
  std::vector<Entry> entries_;    // [steps] row-wise parts, [steps] the rest of linears and attention, 2 more
  std::vector<double> row_laps_;  // [steps]: seconds of the region at hand
  std::thread::id caller_;
  Clock::time_point last_;
};

}  // namespace edge_kit
