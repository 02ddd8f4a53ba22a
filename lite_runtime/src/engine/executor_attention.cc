// The attention of a chunk: rows are cut where a block of the cache ends, so that the rows of an item see the
// same blocks. Where there are too few items for the threads, these share the blocks of an item, and the
// partials are folded in order afterwards.
#include <algorithm>
#include <cstring>

#include "engine/executor.h"

namespace edge_kit {
namespace {

constexpr int64_t kAttentionRows = 16;  // rows of one session per unit of work
constexpr int64_t kLeastBlocks = 4;     // of the cache per unit of work, where rows see many
constexpr int64_t kMostBlocks = 512;    // of the cache that the threads share for one row

// x [dim] -> column `token` of keys [dim, kCacheBlock].
template <typename T>
void write_column(const T* x, int64_t dim, int64_t token, T* keys) {
  for (int64_t d = 0; d < dim; ++d) keys[d * kCacheBlock + token] = x[d];
}

}  // namespace

int64_t Executor::partial_floats_of(const Plan& plan) {
  return kMostBlocks * plan.n_heads * partial_floats(plan.head_dim);
}

void Executor::plan_attention() {
  items_.clear();
  tables_.clear();
  earlier_.clear();
  full_blocks_.clear();
  for (size_t p = 0; p < chunk_->pieces.size(); ++p) {
    const Piece& piece = chunk_->pieces[p];
    const int64_t end = piece.first_position + piece.rows;
    for (int64_t at = piece.first_position, rows; at < end; at += rows) {
      rows = std::min({kAttentionRows, end - at, kCacheBlock - at % kCacheBlock});
      for (int64_t head = 0; head < layout_.n_kv_heads; ++head) {
        items_.push_back(
            {static_cast<int64_t>(p), at - piece.first_position, rows, head, at / kCacheBlock + 1});
      }
    }
    tables_.push_back(static_cast<int64_t>(earlier_.size()));
    for (int64_t b = 0; b < end / kCacheBlock; ++b) {
      const KvCache& cache = piece.session->cache;
      earlier_.push_back(layout_.is_int8() ? cache.int8_block(b) : cache.block(b));
      if (layout_.is_int8() && b >= piece.first_position / kCacheBlock) {
        full_blocks_.push_back({static_cast<int64_t>(p), b});
      }
    }
  }
  cut_attention();
}

// Whether threads would wait long for each other if each took whole items, the one that is free the next.
bool Executor::would_wait() const {
  const size_t threads = static_cast<size_t>(pool_.n_threads());
  if (items_.size() >= threads * kUnitsPerThread) return false;
  std::vector<int64_t> work(threads);
  int64_t total = 0;
  for (const AttentionItem& item : items_) {
    *std::min_element(work.begin(), work.end()) += item.cost();
    total += item.cost();
  }
  return *std::max_element(work.begin(), work.end()) * pool_.n_threads() * 8 > total * 9;
}

// Units of work: items, or ranges of blocks of them.
void Executor::cut_attention() {
  units_.clear();
  const bool cut = would_wait();
  int64_t total = 0;
  for (const AttentionItem& item : items_) total += item.cost();
  const int64_t wanted = std::max<int64_t>(total / (2 * pool_.n_threads()), 1);
  const int64_t group = plan_.n_heads / plan_.n_kv_heads;
  float* next = partials_.get();
  float* const end = next + partial_floats_of(plan_);
  for (AttentionItem& item : items_) {
    const int64_t ranges = std::min((item.cost() + wanted - 1) / wanted, item.blocks / kLeastBlocks);
    const int64_t floats = item.cost() * group * partial_floats(layout_.head_dim);
    const bool cut_item = cut && ranges > 1 && floats <= end - next;
    if (cut_item) {
      item.partials = next;
      next += floats;
    }
    const int64_t index = &item - items_.data(), parts = cut_item ? ranges : 1;
    for (int64_t i = 0; i < parts; ++i) {
      units_.push_back({index, item.blocks * i / parts, item.blocks * (i + 1) / parts});
    }
  }
}

// Writes the row's keys, as a column, and values, as a row, to the session's cache.
void Executor::append(const AttentionStep& step, int64_t row) {
  const Piece& piece = chunk_->pieces[static_cast<size_t>(chunk_->piece_of[static_cast<size_t>(row)])];
  const int64_t position = chunk_->positions[static_cast<size_t>(row)], token = position % kCacheBlock;
  uint8_t* block = piece.session->cache.block(position / kCacheBlock);
  for (int64_t head = 0; head < step.n_kv_heads; ++head) {
    const float* key = buffer(step.k).row(row) + head * step.head_dim;
    const float* value = buffer(step.v).row(row) + head * step.head_dim;
    uint8_t* keys = block + layout_.keys_at(step.layer, head);
    uint8_t* values = block + layout_.values_at(step.layer, head);
    if (layout_.type == KvType::kF32) {
      write_column(key, step.head_dim, token, reinterpret_cast<float*>(keys));
      std::memcpy(values + token * step.head_dim * 4, value, static_cast<size_t>(step.head_dim) * 4);
    } else {
      uint16_t halves[kMaxHeadDim];
      kernels_.to_f16(key, halves, step.head_dim);
      write_column(halves, step.head_dim, token, reinterpret_cast<uint16_t*>(keys));
      kernels_.to_f16(value, reinterpret_cast<uint16_t*>(values) + token * step.head_dim, step.head_dim);
    }
  }
}

void Executor::run_attention(const AttentionStep& step) {
  if (!full_blocks_.empty()) quantize_full_blocks(step);
  const auto attend = [&](int64_t i) {
    const AttentionUnit& unit = units_[static_cast<size_t>(i)];
    AttentionArgs args = attention_args(step, items_[static_cast<size_t>(unit.item)]);
    args.block_begin = unit.block_begin;
    args.block_end = unit.block_end;
    switch (layout_.type) {
      case KvType::kF16: return kernels_.attention_f16(args);
      case KvType::kF32: return kernels_.attention_f32(args);
      case KvType::kInt8: return kernels_.attention_int8(args);
    }
  };
  const int64_t units = static_cast<int64_t>(units_.size());
  const int64_t items = static_cast<int64_t>(items_.size());
  int64_t work = 0;  // multiplications
  for (const AttentionItem& item : items_) {
    work += 2 * item.cost() * kCacheBlock * step.n_heads / step.n_kv_heads * step.head_dim;
  }
  if (units == 1 || work < kTinyWork * 4) {
    for (int64_t i = 0; i < units; ++i) attend(i);
  } else {
    share(units, attend);
  }
  if (units == items) return;
  share(items, [&](int64_t i) {
    const AttentionItem& item = items_[static_cast<size_t>(i)];
    if (item.partials != nullptr) kernels_.fold_partials(attention_args(step, item));
  });
}

void Executor::quantize_full_blocks(const AttentionStep& step) {
  const int64_t heads = layout_.n_kv_heads, dim = layout_.head_dim;
  share(static_cast<int64_t>(full_blocks_.size()) * heads, [&](int64_t unit) {
    const FullBlock& full = full_blocks_[static_cast<size_t>(unit / heads)];
    const KvCache& cache = chunk_->pieces[static_cast<size_t>(full.piece)].session->cache;
    const auto quantize = [&](int64_t from, int64_t rows, int64_t columns, int64_t to) {
      kernels_.quantize_plane(reinterpret_cast<const uint16_t*>(cache.block(full.block) + from), rows,
                              columns, reinterpret_cast<int8_t*>(cache.int8_block(full.block) + to));
    };
    const int64_t layer = step.layer, head = unit % heads;
    quantize(layout_.keys_at(layer, head), dim, kCacheBlock, layout_.int8_keys_at(layer, head));
    quantize(layout_.values_at(layer, head), kCacheBlock, dim, layout_.int8_values_at(layer, head));
  });
}

AttentionArgs Executor::attention_args(const AttentionStep& step, const AttentionItem& item) const {
  const Piece& piece = chunk_->pieces[static_cast<size_t>(item.piece)];
  const Buffer &q = buffer(step.q), &out = buffer(step.output);
  const int64_t layer = step.layer;
  const uint8_t* own = piece.session->cache.block(item.blocks - 1);
  AttentionArgs args;
  args.group = step.n_heads / step.n_kv_heads;
  args.dim = step.head_dim;
  const int64_t row = piece.first_row + item.row, column = item.head * args.group * args.dim;
  args.q = q.row(row) + column;
  args.q_stride = q.stride;
  args.rows = item.rows;
  args.first_visible = piece.first_position + item.row + 1;
  args.blocks = earlier_.data() + tables_[static_cast<size_t>(item.piece)];
  const bool int8 = layout_.is_int8();
  args.keys_at = int8 ? layout_.int8_keys_at(layer, item.head) : layout_.keys_at(layer, item.head);
  args.values_at = int8 ? layout_.int8_values_at(layer, item.head) : layout_.values_at(layer, item.head);
  args.own_keys = own + layout_.keys_at(layer, item.head);
  args.own_values = own + layout_.values_at(layer, item.head);
  args.scale = step.scale;
  args.out = out.row(row) + column;
  args.out_stride = out.stride;
  args.partials = item.partials;
  args.block_begin = 0;
  args.block_end = item.blocks;
  return args;
}

}  // namespace edge_kit
