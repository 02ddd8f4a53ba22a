// A forward is cut into chunks of at most kChunkRows rows, which bounds the workspace. Results do not depend
// on where the cuts fall.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/session.h"

namespace edge_kit {

constexpr int64_t kChunkRows = 256;

struct Piece {  // consecutive rows of one session
  Session* session;
  int64_t first_row, rows;
  int64_t first_position;
};

struct Chunk {
  std::vector<Piece> pieces;
  std::vector<int32_t> ids;        // [rows]
  std::vector<int64_t> positions;  // [rows]
  std::vector<int64_t> piece_of;   // [rows]: index into pieces
  std::vector<int64_t> wanted;     // rows whose logits are asked for, ascending

  int64_t rows() const { return static_cast<int64_t>(ids.size()); }
};

// The segments' ids stand at the end of their sessions' already. Tokens that the cache does not hold any more
// are run once more in front of them.
std::vector<Chunk> cut_into_chunks(const std::vector<Segment>& segments, int64_t chunk_rows);

}  // namespace edge_kit
