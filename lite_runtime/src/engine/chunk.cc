#include "engine/chunk.h"

#include <algorithm>

#include "edge_kit.h"

namespace edge_kit {

std::vector<Chunk> cut_into_chunks(const std::vector<Segment>& segments, int64_t chunk_rows) {
  std::vector<Chunk> chunks;
  for (const Segment& segment : segments) {
    int64_t done = 0;
    while (done < segment.n_ids) {
      if (chunks.empty() || chunks.back().rows() == chunk_rows) chunks.emplace_back();
      Chunk& chunk = chunks.back();
      const int64_t rows = std::min(segment.n_ids - done, chunk_rows - chunk.rows());
      chunk.pieces.push_back({segment.session, chunk.rows(), rows, segment.session->cache.length() + done});
      for (int64_t i = done; i < done + rows; ++i) {
        const bool last = i + 1 == segment.n_ids;
        if (segment.logits == EK_LOGITS_ALL || (segment.logits == EK_LOGITS_LAST && last)) {
          chunk.wanted.push_back(chunk.rows());
        }
        chunk.ids.push_back(segment.ids[i]);
        chunk.positions.push_back(segment.session->cache.length() + i);
        chunk.piece_of.push_back(static_cast<int64_t>(chunk.pieces.size()) - 1);
      }
      done += rows;
    }
  }
  return chunks;
}

}  // namespace edge_kit
