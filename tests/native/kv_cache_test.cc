// The caches of fp16 and of int8: whatever is cut, forked, cancelled or refused memory, what follows is as in
// a fresh session.
#include <thread>

#include "engine_cases.h"
#include "failing_allocations.h"

using namespace edge_kit_test;

namespace {

constexpr int64_t kTokens = 300;

ModelOptions with(bool int8, int n_threads = 2, int64_t chunk_rows = kChunkRows, const char* isa = "") {
  ModelOptions o = options(n_threads, isa, false, chunk_rows);
  if (int8) o.kv_type = KvType::kInt8;
  return o;
}

Ids text(uint32_t seed = 1) { return make_ids(kTokens, seed, toy().shape().n_vocab); }

Ids part(const Ids& ids, int64_t begin, int64_t end) { return Ids(ids.begin() + begin, ids.begin() + end); }

Logits rows(const Logits& logits, int64_t begin, int64_t end) {
  return rows_of(logits, toy().shape().n_vocab, begin, end);
}

// [int8]: the logits of text() in one pass.
const Logits& expected(bool int8) {
  static const Logits f16 = feed(*toy().open(with(false, 1)), text(), kTokens);
  static const Logits quantized = feed(*toy().open(with(true, 1)), text(), kTokens);
  return int8 ? quantized : f16;
}

// Continues the text from the session's length on and compares.
bool goes_on(Model& model, Session& session, bool int8, int64_t count, int64_t step) {
  const int64_t at = session.cache.length();
  const Logits got = feed(model, session, part(text(), at, at + count), step);
  return same(got, rows(expected(int8), at, at + count));
}

int64_t written_blocks(const Session& session) {
  int64_t count = 0;
  for (int64_t b = 0; b * kCacheBlock < session.cache.filled(); ++b) {
    count += session.cache.block(b) != nullptr;
  }
  return count;
}

TEST(int8_bit_stability) {
  for (const char* const* isa = available_kernels(); *isa != nullptr; ++isa) {
    if (is_slow() && isa != available_kernels()) break;
    for (const int64_t chunk_rows : {7, 64, 65, 256}) {
      const int n_threads = static_cast<int>(1 + chunk_rows % 3);
      const auto model = toy().open(with(true, n_threads, chunk_rows, *isa));
      const std::string where = std::string(*isa) + ", chunks of " + std::to_string(chunk_rows) +
                                ", threads " + std::to_string(n_threads);
      CHECK_CASE(same(feed(*model, text(), kTokens), expected(true)), where);
      CHECK_CASE(same(feed(*model, text(), 65), expected(true)), where + ", steps of 65");
    }
  }
  for (const int n_threads : {1, 2, 3}) {
    const auto model = toy().open(with(true, n_threads));
    const std::string where = "one by one, threads " + std::to_string(n_threads);
    CHECK_CASE(same(feed(*model, text(), 1), expected(true)), where);
  }
  CHECK(same(rows(expected(true), 0, kCacheBlock), rows(expected(false), 0, kCacheBlock)));
  CHECK(!same(rows(expected(true), kCacheBlock, kTokens), rows(expected(false), kCacheBlock, kTokens)));
}

TEST(int8_memory) {
  const auto f16 = toy().open(with(false)), int8 = toy().open(with(true));
  CHECK(int8->kv_layout().bytes_per_token() * 100 < f16->kv_layout().bytes_per_token() * 56);
  const auto session = int8->create_session();
  feed(*int8, *session, text(), kTokens);
  CHECK(written_blocks(*session) == 2);
}

TEST(cut) {
  for (const bool int8 : {false, true}) {
    const auto model = toy().open(with(int8));
    const Ids other = text(2);
    for (const int64_t keep : {0, 1, 63, 64, 65, 128, 130, 192, 200, 256, 257, 299, 300}) {
      const std::string where = "int8 " + std::to_string(int8) + ", cut to " + std::to_string(keep);
      Ids ids = part(text(), 0, keep);
      ids.insert(ids.end(), other.begin() + keep, other.end());
      const auto session = model->create_session();
      feed(*model, *session, ids, kTokens);
      model->cut(*session, keep);
      // Kept in fp16: blocks 3 and 4.
      const bool refill = int8 && keep < 192 && keep % kCacheBlock != 0;
      CHECK_CASE(session->cache.length() == keep, where);
      CHECK_CASE(session->cache.filled() == (refill ? keep / kCacheBlock * kCacheBlock : keep), where);
      CHECK_CASE(goes_on(*model, *session, int8, kTokens - keep, 9), where);
    }
    // Again and again, with and without a forward between.
    const auto session = model->create_session();
    feed(*model, *session, text(), kTokens);
    for (const int64_t keep : {290, 260, 250, 140, 135, 130, 120, 70, 66, 64, 3}) {
      model->cut(*session, keep);
      if (keep % 20 != 0) continue;
      const int64_t count = keep == 140 ? 80 : 1;
      CHECK_CASE(goes_on(*model, *session, int8, count, 80), "cuts, now " + std::to_string(keep));
    }
    CHECK(goes_on(*model, *session, int8, kTokens - 3, 100));
  }
}

TEST(wanted_rows_of_a_refill) {
  const auto model = toy().open(with(true, 2, 50));
  const auto session = model->create_session(), other = model->create_session();
  feed(*model, *session, text(), kTokens);
  model->cut(*session, 100);
  const Ids ids = text();
  const Logits got =
      forward(*model, {{other.get(), ids.data(), 3, EK_LOGITS_LAST}, {session.get(), &ids[100], 2}});
  CHECK(same(rows(got, 0, 1), rows(expected(true), 2, 3)));
  CHECK(same(rows(got, 1, 3), rows(expected(true), 100, 102)));
  CHECK(goes_on(*model, *session, true, 150, 150) && goes_on(*model, *other, true, 150, 40));
}

TEST(fork) {
  for (const bool int8 : {false, true}) {
    const auto model = toy().open(with(int8));
    auto trunk = model->create_session();
    feed(*model, *trunk, part(text(), 0, 210), 210);
    const auto branch = model->fork(*trunk);
    CHECK(trunk->cache.int8_block(0) == branch->cache.int8_block(0));
    CHECK(trunk->cache.block(0) == branch->cache.block(0));
    feed(*model, *branch, part(text(2), 210, 300), 90);  // its own way, in what both share
    CHECK(goes_on(*model, *trunk, int8, 10, 10));
    for (const int64_t keep : {205, 190, 130, 64}) {
      model->cut(*branch, keep);
      const auto twig = model->fork(*branch);
      feed(*model, *twig, text(3), 70);
      CHECK_CASE(goes_on(*model, *branch, int8, 1, 1), "branch at " + std::to_string(keep));
    }
    CHECK(goes_on(*model, *trunk, int8, 60, 7));
    model->release(std::move(trunk));
    CHECK(goes_on(*model, *branch, int8, 100, 100));
  }
}

// A forward that fails, before a refill or amid it, leaves the cache as it was.
TEST(failures) {
  for (const bool int8 : {false, true}) {
    const auto model = toy().open(with(int8, 2, 64));
    const Ids ids = text();
    const Ids more = make_ids(1200, 2, toy().shape().n_vocab);  // than the pool has spare blocks for
    for (const int64_t keep : {0, 100, 250}) {
      const auto session = model->create_session();
      feed(*model, *session, ids, kTokens);
      model->cut(*session, keep);
      const int64_t filled = session->cache.filled();
      int refused = 0;
      for (bool done = false; !done; ++refused) {
        blocks_left = refused;
        const auto seen = failure([&] { forward(*model, {{session.get(), more.data(), 1200}}); });
        blocks_left = -1;
        done = seen.first == EK_OK;
        if (done) break;
        const std::string where =
            "int8 " + std::to_string(int8) + ", " + std::to_string(refused) + " allocations";
        CHECK_CASE(seen.first == EK_ERR_OUT_OF_MEMORY, where);
        CHECK_CASE(seen.second.find("available") != std::string::npos, where);
        CHECK_CASE(session->cache.length() == keep && session->cache.filled() == filled, where);
        CHECK_CASE(static_cast<int64_t>(session->ids.size()) == keep, where);
      }
      CHECK(refused > 0);
      model->cut(*session, keep);
      session->cancelled = true;
      CHECK(fails(EK_ERR_CANCELLED, "cancelled", [&] { forward(*model, {{session.get(), &ids[keep], 1}}); }));
      CHECK(goes_on(*model, *session, int8, kTokens - keep, 70));
    }
  }
}

TEST(cancel_amid_a_forward) {
  const auto model = toy().open(with(true));
  const Ids ids = make_ids(20000, 5, toy().shape().n_vocab);
  const auto session = model->create_session();
  feed(*model, *session, text(), kTokens);
  for (const int64_t keep : {290, 130}) {
    model->cut(*session, keep);
    std::thread canceller([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      session->cancelled = true;
    });
    const auto seen = failure([&] { forward(*model, {{session.get(), ids.data(), 20000, EK_LOGITS_NONE}}); });
    canceller.join();
    CHECK(seen.first == EK_ERR_CANCELLED && session->cache.length() == keep);
    CHECK(written_blocks(*session) <= 2);
    CHECK(goes_on(*model, *session, true, 10, 3));
  }
}

TEST(block_pool) {
  constexpr int64_t kBytes = 640 << 10;  // four of them in one piece are of large pages
  std::vector<std::shared_ptr<uint8_t[]>> blocks;
  {
    BlockPool pool(kBytes);
    for (int i = 0; i < 40; ++i) {
      blocks.push_back(pool.take());
      CHECK(reinterpret_cast<uintptr_t>(blocks.back().get()) % 64 == 0);
      std::fill_n(blocks.back().get(), kBytes, static_cast<uint8_t>(i));
    }
    // Some memory stays for the next session, and is given out again.
    const uint8_t* last = blocks.back().get();
    blocks.pop_back();
    blocks.push_back(pool.take());
    CHECK(blocks.back().get() == last);
    std::fill_n(blocks.back().get(), kBytes, uint8_t{39});
    CHECK(pool.n_blocks() == 48);  // 1, 1, 2, 4, 8, 16, 16
    blocks.resize(20);
    CHECK(pool.n_blocks() == 32);
    blocks.resize(4);
    CHECK(pool.n_blocks() <= 4 + 16);
  }
  for (size_t i = 0; i < blocks.size(); ++i) {  // they outlive the pool, and nothing else wrote to them
    const auto is_own = [&](uint8_t byte) { return byte == i; };
    CHECK(std::all_of(blocks[i].get(), blocks[i].get() + kBytes, is_own));
  }
  BlockPool pool(kBytes);
  pool.take();
  CHECK(pool.n_blocks() == 0);
}

}  // namespace

int main() { return run_tests(); }
