// Sessions on disk: they go on as if nothing had happened, whatever their cache is and was.
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <csignal>
#include <new>
#include <thread>

#include "api/handles.h"
#include "api_cases.h"
#include "failing_allocations.h"
#include "io/xxh64.h"
#include "plan/fingerprint.h"
#include "session_cases.h"

using namespace edge_kit_test;

namespace {

uint64_t hash(const std::string& text, size_t piece) {
  Xxh64 h;
  for (size_t at = 0; at < text.size(); at += piece) h.add(&text[at], std::min(piece, text.size() - at));
  return h.value();
}

// From the algorithm's specification and its other implementations.
TEST(xxh64) {
  CHECK(hash("", 1) == 0xEF46DB3751D8E999u);
  CHECK(hash("a", 1) == 0xD24EC4F1A98C6E5Bu);
  CHECK(hash("abc", 2) == 0x44BC2CF5AD770999u);
  const std::string text = "Nobody inspects the spammish repetition, nobody at all.";
  for (const size_t piece : {1, 7, 31, 32, 33, 100}) CHECK(hash(text, piece) == hash(text, 55));
  CHECK(hash("Nobody inspects the spammish repetition", 100) == 0xFBCEA83C8A378BF1u);
}

// The content, how far a cut brings it back, and that nothing else is in a file.
void check_same(Model& a, Session& x, Model& b, Session& y, const std::string& where) {
  CHECK_CASE(x.ids == y.ids, where);
  CHECK_CASE(x.cache.length() == y.cache.length() && x.cache.filled() == y.cache.filled(), where);
  CHECK_CASE(x.cache.n_written() == y.cache.n_written(), where);
  const Ids more = make_ids(70, 9, kVocab);
  for (const int64_t back : {0, 1, 64}) {
    const int64_t length = std::max<int64_t>(0, x.cache.length() - back);
    const auto p = a.fork(x), q = b.fork(y);
    a.cut(*p, length);
    b.cut(*q, length);
    CHECK_CASE(same(feed(a, *p, more, 70), feed(b, *q, more, 35)),
               where + ", cut by " + std::to_string(back));
  }
}

TEST(goes_on_as_the_saved_one) {
  const Folder folder;
  const std::string path = folder.file("s"), again = folder.file("again");
  const char* const* isas = available_kernels();
  int next = 0;
  for (const Kind& kind : kKinds) {
    const auto model = small().open(with(kind));
    for (const int64_t length : {0, 1, 63, 64, 65, 128, 200}) {
      for (const int64_t keep : {length, length - 1, length - 64, length / 2}) {
        if (keep < 0) continue;
        // In INT8 mode every kernel path gives the same floats; in exact mode some add in their own order.
        if (isas[next] == nullptr) next = 0;
        const char* isa = kind.exact ? "" : isas[next++];
        const std::string where = std::string(kind.name) + ", " + std::to_string(length) + " tokens cut to " +
                                  std::to_string(keep) + ", " + isa;
        const auto session = model->create_session();
        if (length > 0) feed(*model, *session, make_ids(length, 3, kVocab), length);
        model->cut(*session, keep);
        const auto fork = model->fork(*session);  // shares the block that is being filled
        model->save(*session, path);
        const auto other = small().open(with(kind, 3, isa));
        const auto restored = other->restore(path);
        check_same(*model, *session, *other, *restored, where);
        other->save(*restored, again);
        CHECK_CASE(read_file(path) == read_file(again), where);
        feed(*model, *fork, make_ids(3, 1, kVocab), 3);
        model->save(*session, again);
        CHECK_CASE(read_file(path) == read_file(again), where + ", after its fork went on");
      }
    }
  }
  CHECK(folder.names().size() == 2);
}

// Blocks of memory are used again: what another session left there, or a cut dropped, is not in the file.
TEST(nothing_else_reaches_the_disk) {
  const Folder folder;
  for (const Kind& kind : kKinds) {
    const auto model = small().open(with(kind));
    for (const int64_t keep : {70, 130}) {
      const auto fresh = model->create_session();
      feed(*model, *fresh, make_ids(keep, 3, kVocab), keep);
      model->save(*fresh, folder.file("fresh"));
      model->release(model->fork(*fresh));
      {
        const auto dirty = model->create_session();
        feed(*model, *dirty, make_ids(200, 8, kVocab), 200);
      }
      const auto session = model->create_session();
      feed(*model, *session, make_ids(keep, 3, kVocab), keep);
      const Ids dropped = make_ids(20, 5, kVocab);
      feed(*model, *session, dropped, 20);
      model->cut(*session, keep);
      model->save(*session, folder.file("session"));
      CHECK_CASE(read_file(folder.file("fresh")) == read_file(folder.file("session")), kind.name);
    }
  }
}

// The system refuses to write on, as on a full disk: the old file stays and no other is left.
TEST(disk_full) {
  const Folder folder;
  const std::string path = folder.file("s");
  const auto model = small().open(with(kKinds[0]));
  const auto session = model->create_session();
  feed(*model, *session, make_ids(70, 3, kVocab), 70);
  model->save(*session, path);
  const Bytes before = read_file(path);
  feed(*model, *session, make_ids(70, 4, kVocab), 70);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit;
  getrlimit(RLIMIT_FSIZE, &limit);
  for (const rlim_t most : {0, 10, 64, 1000, 15000}) {
    const rlimit small_limit{most, limit.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small_limit);
    CHECK(fails(EK_ERR_IO, "what stood there before is unchanged", [&] { model->save(*session, path); }));
    setrlimit(RLIMIT_FSIZE, &limit);
    CHECK(read_file(path) == before && folder.names().size() == 1);
  }
  model->save(*session, path);
  CHECK(model->restore(path)->ids == session->ids);
}

mode_t mode_of(const std::string& path) {
  struct stat info = {};
  lstat(path.c_str(), &info);
  return info.st_mode;
}

TEST(links_permissions_and_long_names) {
  const Folder folder;
  const std::string path = folder.file("s"), link = folder.file("link");
  const auto model = small().open(with(kKinds[0]));
  const auto session = model->create_session();
  model->save(*session, path);
  CHECK((mode_of(path) & 0777) == 0600);  // what was said is its owner's
  chmod(path.c_str(), 0640);
  CHECK(symlink("s", link.c_str()) == 0);
  feed(*model, *session, make_ids(70, 3, kVocab), 70);
  model->save(*session, link);
  CHECK(S_ISLNK(mode_of(link)) && S_ISREG(mode_of(path)) && (mode_of(path) & 0777) == 0640);
  CHECK(model->restore(path)->ids == session->ids && folder.names().size() == 2);
  for (const char* part : {"n", "ü", "中", "👍"}) {
    for (std::string name = part; name.size() <= 255; name += part) {
      if (name.size() < 196) continue;
      model->save(*session, folder.file(name));
      CHECK_CASE(model->restore(folder.file(name))->ids == session->ids, name);
    }
  }
  const std::string too_long = folder.file(std::string(256, 'n'));
  CHECK(fails(EK_ERR_IO, "File name too long", [&] { model->save(*session, too_long); }));
}

TEST(memory_refused) {
  const Folder folder;
  for (const Kind& kind : kKinds) {
    const auto model = small().open(with(kind));
    const auto session = model->create_session();
    feed(*model, *session, make_ids(200, 3, kVocab), 200);
    int refusals = 0;
    for (bool done = false; !done; ++refusals) {
      blocks_left = refusals;
      try {
        model->save(*session, folder.file("s"));
        const auto restored = model->restore(folder.file("s"));
        done = true;
        blocks_left = -1;
        check_same(*model, *session, *model, *restored, kind.name);
      } catch (const std::bad_alloc&) {
      }
      blocks_left = -1;
    }
    CHECK_CASE(refusals > 3, kind.name);
    CHECK(folder.names().size() == 1);
  }
}

TEST(other_sessions_go_on_meanwhile) {
  const Folder folder;
  const auto model = small().open(with(kKinds[1]));
  const auto trunk = model->create_session();
  feed(*model, *trunk, make_ids(130, 3, kVocab), 130);
  const auto branch = model->fork(*trunk);
  std::thread other([&] { feed(*model, *branch, make_ids(100, 4, kVocab), 1); });
  for (int i = 0; i < 10; ++i) model->save(*trunk, folder.file("s"));
  other.join();
  CHECK(model->restore(folder.file("s"))->ids == trunk->ids);
}

// The plan of `small` with one number changed.
Plan changed(const std::function<bool(Step&)>& change) {
  Plan plan = small().plan();
  const bool found = std::any_of(plan.steps.rbegin(), plan.steps.rend(), change);
  REQUIRE(found);
  return plan;
}

TEST(fingerprints) {
  const uint64_t same_weights = fingerprint(small().plan());
  CHECK(fingerprint(ToyModel(small().shape()).plan()) == same_weights);
  std::vector<float> numbers;
  std::vector<int8_t> bytes;
  const auto altered = [&](const float* values, int64_t count, int64_t at) {
    numbers.assign(values, values + count);
    numbers[static_cast<size_t>(at)] *= 1.0001f;
    return numbers.data();
  };
  std::vector<uint64_t> seen = {same_weights};
  const auto note = [&](const std::function<bool(Step&)>& change) {
    seen.push_back(fingerprint(changed(change)));
  };
  note([&](Step& step) {
    auto* linear = std::get_if<LinearStep>(&step.op);
    if (linear == nullptr) return false;
    Weight& w = linear->weights.back();
    w.scale = altered(w.scale, w.n, w.n / 2);
    return true;
  });
  note([&](Step& step) {
    auto* linear = std::get_if<LinearStep>(&step.op);
    if (linear == nullptr || linear->weights[0].bias == nullptr) return false;
    linear->weights[0].bias = altered(linear->weights[0].bias, linear->weights[0].n, 1);
    return true;
  });
  for (const bool last : {false, true}) {  // a byte at an end of a matrix of more than 2 KB
    note([&](Step& step) {
      auto* linear = std::get_if<LinearStep>(&step.op);
      if (linear == nullptr || linear->weights[0].n * linear->weights[0].k <= 2048) return false;
      Weight& w = linear->weights[0];
      const int8_t* data = static_cast<const int8_t*>(w.data);
      bytes.assign(data, data + w.n * w.k);
      (last ? bytes.back() : bytes.front()) ^= 1;
      w.data = bytes.data();
      return true;
    });
  }
  note([&](Step& step) {
    auto* norm = std::get_if<RmsNormStep>(&step.op);
    if (norm == nullptr) return false;
    norm->weight = altered(norm->weight, norm->k, norm->k - 1);
    return true;
  });
  note([&](Step& step) {
    auto* norm = std::get_if<RmsNormStep>(&step.op);
    if (norm == nullptr) return false;
    norm->eps *= 2;
    return true;
  });
  note([&](Step& step) {
    auto* attention = std::get_if<AttentionStep>(&step.op);
    if (attention == nullptr) return false;
    attention->scale *= 2;
    return true;
  });
  Plan plan = small().plan();
  plan.inv_freq[0] *= 2;
  seen.push_back(fingerprint(plan));
  std::sort(seen.begin(), seen.end());
  CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
}

TEST(c_api) {
  const Folder folder;
  const std::string path = folder.file("s");
  const Ids ids = make_ids(70, 3, kVocab);
  ek_model* model = new ek_model{small().open(with(kKinds[0]))};
  ek_model* exact = new ek_model{small().open(with(kKinds[2]))};
  ek_model* int8 = new ek_model{small().open(with(kKinds[1]))};
  ek_session* session = nullptr;
  REQUIRE(ek_session_create(model, &session) == EK_OK);
  const ek_segment segment = {session, ids.data(), 70, EK_LOGITS_NONE};
  REQUIRE(ek_forward(model, &segment, 1, nullptr, 0) == EK_OK);
  REQUIRE(ek_session_save(session, path.c_str()) == EK_OK);

  ek_session* restored = nullptr;
  REQUIRE(ek_session_restore(model, path.c_str(), &restored) == EK_OK);
  CHECK(ek_session_length(restored) == 70);
  Ids found(71, -1);
  size_t count = 0;
  CHECK(ek_session_ids(restored, nullptr, 0, &count) == EK_OK && count == 70);
  CHECK(ek_session_ids(restored, found.data(), 69, &count) == EK_OK && count == 70 && found[0] == -1);
  CHECK(ek_session_ids(restored, found.data(), 71, &count) == EK_OK && count == 70 && found[70] == -1);
  CHECK(std::equal(ids.begin(), ids.end(), found.begin()));
  ek_session_free(restored);

  restored = session;
  CHECK(says(ek_session_restore(exact, path.c_str(), &restored), EK_ERR_MISMATCH, "open in exact mode"));
  CHECK(restored == nullptr);
  CHECK(says(ek_session_restore(int8, path.c_str(), &restored), EK_ERR_MISMATCH, "kv_dtype"));
  CHECK(says(ek_session_save(nullptr, path.c_str()), EK_ERR_INVALID_ARGUMENT, "session is NULL"));
  CHECK(says(ek_session_save(session, nullptr), EK_ERR_INVALID_ARGUMENT, "path is NULL"));
  CHECK(says(ek_session_restore(nullptr, path.c_str(), &restored), EK_ERR_INVALID_ARGUMENT, "model is NULL"));
  CHECK(says(ek_session_restore(model, nullptr, &restored), EK_ERR_INVALID_ARGUMENT, "path is NULL"));
  CHECK(says(ek_session_restore(model, path.c_str(), nullptr), EK_ERR_INVALID_ARGUMENT, "session is NULL"));
  CHECK(says(ek_session_ids(nullptr, nullptr, 0, &count), EK_ERR_INVALID_ARGUMENT, "session is NULL"));
  CHECK(says(ek_session_ids(session, nullptr, 1, &count), EK_ERR_INVALID_ARGUMENT, "ids is NULL"));
  CHECK(says(ek_session_ids(session, nullptr, 0, nullptr), EK_ERR_INVALID_ARGUMENT, "n_ids is NULL"));
  for (ek_model* one : {exact, int8, model}) ek_model_close(one);
  CHECK(says(ek_session_save(session, path.c_str()), EK_ERR_INVALID_ARGUMENT, "model has been closed"));
  ek_session_free(session);
}

}  // namespace

int main() { return run_tests(); }
