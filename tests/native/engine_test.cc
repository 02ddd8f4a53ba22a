// The engine on a toy model: the same logits, bit for bit, however a text is cut, batched and threaded.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/cpu.h"
#include "engine/step_access.h"
#include "engine/system_files.h"
#include "engine_cases.h"
#include "toy_reference.h"

using namespace edge_kit_test;

namespace {

void check_against_plain_computation(const ToyShape& shape) {
  const ToyModel toy(shape);
  const auto model = toy.open(options(2, "scalar", true));
  const Ids ids = make_ids(80, 7, shape.n_vocab);
  const Logits got = feed(*model, ids, 80), expected = plain_logits(toy.plan(), ids);
  float largest = 0.0f, difference = 0.0f;
  for (size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::fabs(expected[i]));
    difference = std::max(difference, std::fabs(expected[i] - got[i]));
  }
  CHECK(largest > 1.0f);
  CHECK(difference <= 2e-5f * largest);
}

void check_bit_stability(const char* isa, bool exact) {
  const int64_t n_vocab = toy().shape().n_vocab;
  const Ids a = make_ids(135, 1, n_vocab), b = make_ids(50, 2, n_vocab), c = make_ids(70, 3, n_vocab);
  const auto plain = toy().open(options(1, isa, exact));
  const Logits one_by_one = feed(*plain, a, 1), of_b = feed(*plain, b, 1), of_c = feed(*plain, c, 1);
  struct Case {
    int n_threads;
    int64_t chunk_rows;
  };
  for (const Case& shape : {Case{1, kChunkRows}, Case{2, kChunkRows}, Case{2, 5}, Case{3, kChunkRows}}) {
    const auto model = toy().open(options(shape.n_threads, isa, exact, shape.chunk_rows));
    const std::string where = std::string(isa) + (exact ? " exact" : " int8") + ", threads " +
                              std::to_string(shape.n_threads) + ", chunk rows " +
                              std::to_string(shape.chunk_rows);
    CHECK_CASE(same(feed(*model, a, 135), one_by_one), where + ", one pass");
    CHECK_CASE(same(feed(*model, a, 7), one_by_one), where + ", chunks of 7");
    if (shape.n_threads > 1) CHECK_CASE(same(feed(*model, a, 1), one_by_one), where + ", one by one");
    // Prefill of one session between decodes of others, the order changing.
    const auto sa = model->create_session(), sb = model->create_session(), sc = model->create_session();
    const Logits first = forward(*model, {{sb.get(), b.data(), 30}, {sc.get(), c.data(), 69}});
    const Logits mixed = forward(
        *model, {{sc.get(), c.data() + 69, 1}, {sa.get(), a.data(), 135}, {sb.get(), b.data() + 30, 20}});
    CHECK_CASE(same(rows_of(first, n_vocab, 0, 30), rows_of(of_b, n_vocab, 0, 30)), where + ", mixed b");
    CHECK_CASE(same(rows_of(first, n_vocab, 30, 99), rows_of(of_c, n_vocab, 0, 69)), where + ", mixed c");
    CHECK_CASE(same(rows_of(mixed, n_vocab, 0, 1), rows_of(of_c, n_vocab, 69, 70)), where + ", mixed decode");
    CHECK_CASE(same(rows_of(mixed, n_vocab, 1, 136), one_by_one), where + ", mixed prefill");
    CHECK_CASE(same(rows_of(mixed, n_vocab, 136, 156), rows_of(of_b, n_vocab, 30, 50)),
               where + ", mixed rest");
  }
}

TEST(wanted_rows) {
  const int64_t n_vocab = toy().shape().n_vocab;
  const Ids a = make_ids(20, 4, n_vocab), b = make_ids(13, 5, n_vocab);
  for (int64_t chunk_rows : {int64_t{6}, kChunkRows}) {
    const auto model = toy().open(options(2, "", false, chunk_rows));
    const Logits all_a = feed(*model, a, 20), all_b = feed(*model, b, 13);
    const auto sa = model->create_session(), sb = model->create_session();
    CHECK(forward(*model, {{sa.get(), a.data(), 12, EK_LOGITS_NONE}}).empty());
    CHECK(sa->cache.length() == 12);
    const Logits got =
        forward(*model, {{sa.get(), a.data() + 12, 8, EK_LOGITS_LAST}, {sb.get(), b.data(), 13}});
    CHECK(same(rows_of(got, n_vocab, 0, 1), rows_of(all_a, n_vocab, 19, 20)));
    CHECK(same(rows_of(got, n_vocab, 1, 14), all_b));
  }
}

TEST(cut) {
  const int64_t n_vocab = toy().shape().n_vocab;
  const auto model = toy().open(options(2));
  for (int64_t n : {64, 100, 129}) {
    const Ids ids = make_ids(n, 6, n_vocab), other = make_ids(n, 60, n_vocab);
    const Logits cold = feed(*model, ids, n);
    for (int64_t keep : {int64_t{0}, int64_t{1}, int64_t{63}, int64_t{64}, n - 1, n}) {
      const std::string where = "cut of " + std::to_string(n) + " to " + std::to_string(keep);
      Ids start(ids.begin(), ids.begin() + keep);
      start.insert(start.end(), other.begin() + keep, other.end());
      const auto session = model->create_session();
      feed(*model, *session, start, n);
      model->cut(*session, keep);
      CHECK_CASE(session->cache.length() == keep, where);
      const Logits rest = feed(*model, *session, Ids(ids.begin() + keep, ids.end()), 9);
      CHECK_CASE(same(rest, rows_of(cold, n_vocab, keep, n)), where);
    }
  }
  const auto session = model->create_session();
  CHECK(fails(EK_ERR_INVALID_ARGUMENT, "0 tokens to 1", [&] { model->cut(*session, 1); }));
  CHECK(fails(EK_ERR_INVALID_ARGUMENT, "to -1", [&] { model->cut(*session, -1); }));
}

TEST(fork) {
  const int64_t n_vocab = toy().shape().n_vocab;
  const auto model = toy().open(options(2));
  for (int64_t n : {5, 64, 100}) {
    const Ids start = make_ids(n, 8, n_vocab), left = make_ids(70, 9, n_vocab),
              right = make_ids(70, 10, n_vocab);
    const auto cold = [&](const Ids& rest) {
      Ids ids = start;
      ids.insert(ids.end(), rest.begin(), rest.end());
      return rows_of(feed(*model, ids, 200), n_vocab, n, n + 70);
    };
    const std::string where = "fork at " + std::to_string(n);
    auto trunk = model->create_session();
    feed(*model, *trunk, start, n);
    const auto branch = model->fork(*trunk);
    if (n >= kCacheBlock)
      CHECK_CASE(trunk->cache.block(0) == branch->cache.block(0), where + ", shared block");
    CHECK_CASE(same(feed(*model, *trunk, left, 3), cold(left)), where + ", trunk");
    CHECK_CASE(same(feed(*model, *branch, right, 4), cold(right)), where + ", branch");
    if (n % kCacheBlock != 0) {
      CHECK_CASE(trunk->cache.block(n / kCacheBlock) != branch->cache.block(n / kCacheBlock),
                 where + ", own block");
    }
    // A cut into shared blocks: what is written next must not show in the other.
    const auto twig = model->fork(*branch);
    model->cut(*twig, n);
    feed(*model, *twig, left, 70);
    model->release(std::move(trunk));
    model->cut(*branch, n);
    CHECK_CASE(same(feed(*model, *branch, right, 70), cold(right)), where + ", after cuts");
  }
}

TEST(context_full) {
  ModelOptions o = options(1);
  o.n_ctx = 70;
  const auto model = toy().open(o);
  const Ids ids = make_ids(80, 11, toy().shape().n_vocab);
  const auto a = model->create_session(), b = model->create_session();
  feed(*model, *a, Ids(ids.begin(), ids.begin() + 60), 60);
  const std::vector<Part> too_much = {{b.get(), ids.data(), 5}, {a.get(), ids.data() + 60, 11}};
  CHECK(fails(EK_ERR_CONTEXT_FULL, "need 71, the limit n_ctx is 70", [&] { forward(*model, too_much); }));
  CHECK(a->cache.length() == 60 && b->cache.length() == 0);
  const Logits rest = forward(*model, {{a.get(), ids.data() + 60, 10}});
  const Logits cold = feed(*toy().open(options(1)), Ids(ids.begin(), ids.begin() + 70), 70);
  CHECK(same(rest, rows_of(cold, toy().shape().n_vocab, 60, 70)));
  CHECK(fails(EK_ERR_CONTEXT_FULL, "n_ctx", [&] { forward(*model, {{a.get(), ids.data(), 1}}); }));
}

TEST(cancel) {
  const auto model = toy().open(options(2));
  const Ids ids = make_ids(3000, 12, toy().shape().n_vocab);
  const auto session = model->create_session(), other = model->create_session();
  const Logits before = feed(*model, *session, Ids(ids.begin(), ids.begin() + 3), 3);

  session->cancelled = true;  // concerns the next forward, and only that
  CHECK(fails(EK_ERR_CANCELLED, "cancelled", [&] { forward(*model, {{session.get(), ids.data() + 3, 1}}); }));
  CHECK(session->cache.length() == 3);

  std::pair<ek_status, std::string> seen;
  std::thread worker([&] {
    for (int i = 0; i < 1000 && seen.first == EK_OK; ++i) {
      seen = failure([&] {
        forward(*model, {{other.get(), ids.data(), 2, EK_LOGITS_NONE},
                         {session.get(), ids.data() + 3, 2900, EK_LOGITS_NONE}});
        model->cut(*session, 3);
        model->cut(*other, 0);
      });
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  session->cancelled = true;
  worker.join();
  CHECK(seen.first == EK_ERR_CANCELLED);
  CHECK(session->cache.length() == 3 && other->cache.length() == 0);
  for (const auto& one : {session.get(), other.get()}) {  // the rest was given back
    const int64_t end = one->cache.length() + kCacheBlock;
    CHECK(one->cache.missing_bytes(end, kChunkRows) == model->kv_layout().block_bytes());
  }
  const Logits after = forward(*model, {{session.get(), ids.data() + 3, 1}});
  const Logits cold = feed(*model, Ids(ids.begin(), ids.begin() + 4), 4);
  CHECK(same(after, rows_of(cold, toy().shape().n_vocab, 3, 4)));
}

TEST(concurrent_sessions) {
  const auto model = toy().open(options(2));
  const int64_t n_vocab = toy().shape().n_vocab;
  constexpr int kThreads = 3;
  const Ids start = make_ids(40, 13, n_vocab);
  const auto trunk = model->create_session();
  feed(*model, *trunk, start, 40);
  std::vector<Logits> expected, got(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    Ids ids = start;
    const Ids rest = make_ids(50, 20 + static_cast<uint32_t>(t), n_vocab);
    ids.insert(ids.end(), rest.begin(), rest.end());
    expected.push_back(rows_of(feed(*model, ids, 90), n_vocab, 40, 90));
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      auto session = model->fork(*trunk);  // all share a block that each will write to
      got[static_cast<size_t>(t)] =
          feed(*model, *session, make_ids(50, 20 + static_cast<uint32_t>(t), n_vocab), 3);
      model->release(std::move(session));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t t = 0; t < kThreads; ++t) CHECK_CASE(same(got[t], expected[t]), "thread " + std::to_string(t));
}

// One or two long sessions and more threads than key/value heads: the threads share a head's blocks.
TEST(attention_shared_among_threads) {
  const int64_t n_vocab = toy().shape().n_vocab, n = 800;
  const Ids ids = make_ids(n, 14, n_vocab);
  for (const bool exact : {false, true}) {
    Logits expected;
    for (const int n_threads : {1, 3, 4, 7}) {
      const auto model = toy().open(options(n_threads, "", exact));
      const auto session = model->create_session(), other = model->create_session();
      forward(*model, {{session.get(), ids.data(), n - 20, EK_LOGITS_NONE},
                       {other.get(), ids.data(), n - 100, EK_LOGITS_NONE}});
      Logits got;
      const auto keep = [&](const Logits& part) { got.insert(got.end(), part.begin(), part.end()); };
      for (int64_t i = n - 20; i < n - 10; ++i) keep(forward(*model, {{session.get(), &ids[i], 1}}));
      keep(forward(*model, {{session.get(), &ids[n - 10], 4}}));
      keep(forward(*model, {{other.get(), &ids[n - 100], 2}, {session.get(), &ids[n - 6], 6}}));
      if (n_threads == 1) expected = got;
      CHECK_CASE(same(got, expected), "threads " + std::to_string(n_threads) + (exact ? " exact" : ""));
    }
  }
}

TEST(limits) {
  CHECK(fails(EK_ERR_INVALID_ARGUMENT, "n_threads is -1", [] { toy().open(options(-1)); }));
  CHECK(fails(EK_ERR_INVALID_ARGUMENT, "isa z80", [] { toy().open(options(1, "z80")); }));
  ModelOptions o = options(1);
  o.n_ctx = int64_t{1} << 40;
  CHECK(fails(EK_ERR_INVALID_ARGUMENT, "n_ctx is 1099511627776", [&] { toy().open(o); }));

  Plan huge = toy().plan();
  huge.n_layers = int64_t{1} << 32;  // a block of the cache alone is larger than any machine's memory
  CHECK(fails(EK_ERR_OUT_OF_MEMORY, "are available", [&] { Model(nullptr, huge, options(1)); }));
  Plan broken = toy().plan();
  broken.buffer_widths[0] -= 1;
  CHECK(fails(EK_ERR_INTERNAL, "columns of buffer 0", [&] { Model(nullptr, broken, options(1)); }));

  CHECK(default_threads() >= 1 && default_threads() <= kMaxThreads);
  CHECK(toy().open(ModelOptions())->n_threads() == default_threads());
  CHECK((parse_cpu_list("0-2,5,7-8") == std::vector<int>{0, 1, 2, 5, 7, 8}));
  CHECK(parse_cpu_list("").empty() && parse_cpu_list("none").empty());
  CHECK(available_memory() == -1 || available_memory() > 0);
}

TEST(against_plain_computation) {
  check_against_plain_computation(ToyShape());
  check_against_plain_computation(toy().shape());
}

// Many rows run an MLP in one go where its width is whole groups of quantization; a few rows never do.
TEST(mlp_in_one_go) {
  const ToyShape base = toy().shape();
  for (int64_t ffn : {64, 160, 192, 328, 640}) {
    ToyShape shape = base;
    shape.ffn = ffn;
    const ToyModel toy(shape);
    int64_t found = 0;
    for (size_t i = 0; i < toy.plan().steps.size(); ++i) found += is_int8_mlp(toy.plan(), i);
    CHECK_CASE(found == (ffn % kGroup == 0 ? shape.n_layers : 0), "width " + std::to_string(ffn));
    const Ids ids = make_ids(37, 12, shape.n_vocab);
    const Logits one_by_one = feed(*toy.open(options(1)), ids, 1);
    for (int n_threads : {1, 3}) {
      const auto model = toy.open(options(n_threads));
      for (int64_t rows : {8, 9, 16, 37}) {
        CHECK_CASE(same(feed(*model, ids, rows), one_by_one),
                   "width " + std::to_string(ffn) + ", rows " + std::to_string(rows));
      }
    }
  }
}

TEST(mlp_step_by_step) {
  const Plan& plan = toy().plan();
  size_t first = 0;
  while (!is_int8_mlp(plan, first)) ++first;
  const SiluMulStep activation = std::get<SiluMulStep>(plan.steps[first + 1].op);
  Plan fp32 = plan, gated_by_itself = plan, other_input = plan, cut_short = plan, read_later = plan;
  std::get<LinearStep>(fp32.steps[first + 2].op).weights[0].is_int8 = false;
  CHECK(!is_int8_mlp(fp32, first));
  std::get<SiluMulStep>(gated_by_itself.steps[first + 1].op).gate = activation.up;
  CHECK(!is_int8_mlp(gated_by_itself, first));
  std::get<LinearStep>(other_input.steps[first + 2].op).input = activation.up;
  CHECK(!is_int8_mlp(other_input, first));
  cut_short.first_row_local_step = first + 2;
  CHECK(!is_int8_mlp(cut_short, first));
  std::get<AddStep>(read_later.steps[first + 3].op).b = activation.output;
  CHECK(!is_int8_mlp(read_later, first));
  CHECK(!is_int8_mlp(plan, plan.steps.size() - 1));
}

TEST(bit_stability) {
  for (const char* const* isa = available_kernels(); *isa != nullptr; ++isa) {
    if (is_slow() && isa != available_kernels()) break;  // the engine's code is the same for all
    for (bool exact : {false, true}) check_bit_stability(*isa, exact);
  }
}

}  // namespace

int main() { return run_tests(); }
