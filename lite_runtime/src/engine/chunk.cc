#include "engine/chunk.h"

#include <algorithm>

#include "edge_kit.h"

namespace edge_kit {

std::vector<Chunk> cut_into_chunks(const std::vector<Segment>& segments, int64_t chunk_rows) {
  std::vector<Chunk> chunks;
  for (const Segment& segment : segments) {
    const std::vector<int32_t>& ids = segment.session->ids;
    const int64_t end = static_cast<int64_t>(ids.size()), first_new = end - segment.n_ids;
    for (int64_t at = segment.session->cache.filled(); at < end;) {
      if (chunks.empty() || chunks.back().rows() == chunk_rows) chunks.emplace_back();
      Chunk& chunk = chunks.back();
      const int64_t rows = std::min(end - at, chunk_rows - chunk.rows());
      chunk.pieces.push_back({segment.session, chunk.rows(), rows, at});
      for (const int64_t piece_end = at + rows; at < piece_end; ++at) {
        if ((segment.logits == EK_LOGITS_ALL && at >= first_new) ||
            (segment.logits == EK_LOGITS_LAST && at + 1 == end)) {
          chunk.wanted.push_back(chunk.rows());
        }
        chunk.ids.push_back(ids[static_cast<size_t>(at)]);
        chunk.positions.push_back(at);
        chunk.piece_of.push_back(static_cast<int64_t>(chunk.pieces.size()) - 1);
      }
    }
  }
  return chunks;
}

}  // namespace edge_kit
