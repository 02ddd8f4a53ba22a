// Lowers a program to steps by the op sequences of a decoder.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plan/graph.h"
#include "plan/plan.h"

namespace edge_kit {

// Columns of the program's inputs; from kPastColumn on, key and value of each layer in turn.
constexpr int64_t kIdsColumn = 0, kPositionsColumn = 1, kMaskColumn = 2, kPastColumn = 3;

struct Lowering {
  std::vector<Step> steps;            // name values where a plan's steps name buffers
  std::map<ValueId, int64_t> widths;  // of every value that a step gives
  std::vector<ValueId> present;       // key and value of each layer, past and new tokens
  std::vector<float> inv_freq;
  int64_t n_vocab = 0, hidden_size = 0, n_layers = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0;
};

// Refuses a program with an op that is part of no known sequence.
Lowering lower(Graph& graph);

}  // namespace edge_kit
