// From the program in the file to the few fused steps that the engine runs.
//
// The program is the only source: the planner follows it in order, resolves names to values (one name may
// stand for several values in turn), matches the op sequences of a decoder and fails with the name of the
// first op that it cannot lower. Owner: pointers in a plan lead into the NbFile it was made from.
//
// A step reads and writes buffers: fp32 [rows, width], one row per token of the forward. Heads lie side by
// side in a row, [heads, dim]; the transposes and reshapes of the program are views and vanish.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "io/nb_file.h"
#include "kernels/kernels.h"

namespace edge_kit {

struct EmbeddingStep {  // output = table[id] (* scale[id])
  const void* table;    // [n, k] row-major, int8 or fp32
  const float* scale;   // [n]; null for fp32
  int64_t n, k;
  int output;
};

struct RmsNormStep {
  const float* weight;  // [k]
  float eps;
  int64_t k;
  int input, output;
};

struct LinearStep {  // all linears that read the same input: q, k, v; gate, up
  int input;
  std::vector<Weight> weights;
  std::vector<std::string> names;  // of the weight tensors
  std::vector<int> outputs;
};

struct RopeStep {  // in place
  int value;
  int64_t heads, dim;
};

struct AttentionStep {  // appends k and v to the cache of `layer`, then attends
  int layer;
  int q, k, v, output;
  int64_t n_heads, n_kv_heads, head_dim;
  float scale;
};

struct SiluMulStep {
  int gate, up, output;
  int64_t width;
};

struct AddStep {
  int a, b, output;
  int64_t width;
};

struct Step {
  std::string name;  // for messages and profiles, e.g. "layers.0.self_attn.q_proj.weight"
  std::variant<EmbeddingStep, RmsNormStep, LinearStep, RopeStep, AttentionStep, SiluMulStep, AddStep> op;
};

struct Plan {
  std::vector<Step> steps;
  std::vector<int64_t> buffer_widths;  // buffers are reused once their value is dead
  std::vector<float> inv_freq;         // [head_dim / 2]: angle = position * inv_freq
  int logits = -1;                     // buffer [rows, n_vocab], written by the last step
  int64_t n_vocab = 0, n_layers = 0, hidden_size = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0;
  int64_t parameter_bytes_per_token = 0;  // linears with scales and biases, norms, one embedding row
  // Steps from here on treat rows alone (everything after the last attention): only rows whose logits are
  // wanted need to go on.
  size_t first_row_local_step = 0;
};

// Errors: EK_ERR_NOT_SUPPORTED naming op, position and cause; EK_ERR_FORMAT for a missing or misshapen tensor.
Plan make_plan(const NbFile& file);

}  // namespace edge_kit
