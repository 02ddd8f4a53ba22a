// Runs a chunk of rows through the plan.
//
// Steps that treat every row alone (norms, RoPE, adds, quantization, appending to the cache) are gathered up
// to the next linear or attention and done row by row, so that a row stays in the nearest cache; for a few
// rows they run on the calling thread, since waking the others costs more than the work. Linears are cut
// along their outputs, attention along rows, key/value heads and blocks of the cache. Many rows of an MLP are
// activated and quantized column by column while those of gate and up are near. None of these cuts changes a
// bit of a result.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "engine/chunk.h"
#include "engine/kv_cache.h"
#include "engine/memory.h"
#include "engine/profile.h"
#include "engine/thread_pool.h"
#include "kernels/kernels.h"
#include "plan/plan.h"

namespace edge_kit {

// Below this many floats touched, weights read or multiplications done, a region runs on the calling thread.
constexpr int64_t kTinyWork = 16384;
constexpr int64_t kUnitsPerThread = 4;  // so that a thread that is held up does not hold up the rest

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
inline int64_t groups_of(int64_t k) { return (k + kGroup - 1) / kGroup; }

class Executor {
 public:
  // All references are borrowed. `exact`: fp32 activations.
  Executor(const Plan& plan, const Kernels& kernels, ThreadPool& pool, const KvLayout& layout, bool exact,
           int64_t chunk_rows);

  // Bytes that an executor of this shape allocates.
  static int64_t workspace_bytes(const Plan& plan, bool exact, int64_t chunk_rows);

  // Room for the chunk's tokens must have been reserved in the caches. `logits` [chunk.wanted, n_vocab].
  // `check` is called once per layer and stops the run by throwing.
  void run(const Chunk& chunk, float* logits, const std::function<void()>& check);

  void set_profile(Profile* profile) { profile_ = profile; }  // borrowed; null = none is taken

 private:
  struct Buffer {
    float* data = nullptr;
    int64_t stride = 0;  // floats from row to row
    float* row(int64_t r) const { return data + r * stride; }
  };
  struct AttentionItem {  // rows of one piece in one block of the cache, one key/value head
    int64_t piece, row, rows, head;
    int64_t blocks;             // that the rows see
    float* partials = nullptr;  // where the blocks are shared among threads
    int64_t cost() const { return rows * blocks; }
  };
  struct AttentionUnit {  // a range of blocks of one item
    int64_t item, block_begin, block_end;
  };
  struct FullBlock {  // filled by the chunk at hand
    int64_t piece, block;
  };

  struct QuantizedBuffer {  // inputs of INT8 linears
    AlignedArray<int8_t> values;
    AlignedArray<float> scales;
    AlignedArray<int32_t> offsets;
    void allocate(int64_t groups);
    QuantizedRows rows(int64_t rows, int64_t k) const;
  };

  const Buffer& buffer(int index) const { return buffers_[static_cast<size_t>(index)]; }

  void compute_angles();
  static int64_t partial_floats_of(const Plan& plan);  // for one row's attention, in all heads
  void plan_attention();
  bool would_wait() const;
  void cut_attention();
  void keep_wanted_rows();

  template <typename Function>
  void for_rows(int64_t cost_per_row, const Function& function);
  // Calls function(unit) for all units, each on the thread that is free next.
  template <typename Function>
  void share(int64_t units, const Function& function) {
    std::atomic<int64_t> next{0};
    pool_.run([&](int) {
      for (int64_t unit = next++; unit < units; unit = next++) function(unit);
    });
  }
  void run_rows(size_t begin, size_t end);
  void run_row(const Step& step, int64_t row);
  void append(const AttentionStep& step, int64_t row);
  void quantize(const LinearStep& step, int64_t row);
  bool needs_quantized(const LinearStep& step) const;
  void run_linear(const LinearStep& step, const QuantizedBuffer& quantized);
  void run_tiles(const LinearStep& step, const QuantizedBuffer& quantized, int64_t tile_begin,
                 int64_t tile_end);
  void run_mlp(size_t first);
  void run_mlp_columns(const LinearStep& gate_up, const SiluMulStep& activation, int64_t group,
                       int64_t scratch);
  void run_attention(const AttentionStep& step);
  void quantize_full_blocks(const AttentionStep& step);
  AttentionArgs attention_args(const AttentionStep& step, const AttentionItem& item) const;

  const Plan& plan_;
  const Kernels& kernels_;
  ThreadPool& pool_;
  const KvLayout layout_;
  const bool exact_;
  Profile* profile_ = nullptr;
  std::vector<int64_t> row_cost_;  // per step: floats read and written per row
  std::vector<bool> is_mlp_;       // per step: `is_int8_mlp`
  std::vector<int> live_;          // buffers that the row-local steps at the end take over

  AlignedArray<float> floats_, cos_, sin_, partials_;
  QuantizedBuffer quantized_;      // by the row-wise part of a linear
  QuantizedBuffer quantized_mlp_;  // an MLP's activation, while threads still read the above
  std::vector<Buffer> buffers_;

  // The chunk at hand.
  const Chunk* chunk_ = nullptr;
  int64_t rows_ = 0;  // that still go on
  std::vector<AttentionItem> items_;
  std::vector<AttentionUnit> units_;
  std::vector<FullBlock> full_blocks_;    // of an int8 cache
  std::vector<int64_t> tables_;           // [pieces]: where a piece's blocks begin below
  std::vector<const uint8_t*> earlier_;   // per piece [blocks]: the full blocks, as later rows see them
};

}  // namespace edge_kit
