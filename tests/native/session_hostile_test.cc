// Session files that are damaged, or lie: each is refused for its reason, and nothing is read past an end.
#include <fcntl.h>
#include <sys/stat.h>

#include <limits>

#include "io/xxh64.h"
#include "session_cases.h"

using namespace edge_kit_test;

namespace {

TEST(every_flipped_byte_and_every_length) {
  const Folder folder;
  const std::string path = folder.file("s");
  for (const Kind& kind : kKinds) {
    const auto model = small().open(with(kind, 1));
    for (const int64_t length : {0, 70}) {
      if (is_slow() && length > 0 && kind.type != KvType::kInt8) continue;
      const auto session = model->create_session();
      if (length > 0) feed(*model, *session, make_ids(length, 3, kVocab), length);
      model->save(*session, path);
      const Bytes good = read_file(path);
      const int64_t size = static_cast<int64_t>(good.size());
      const int64_t step = is_slow() && length > 0 ? 61 : 1;
      const auto refused = [&] {
        return failure([&] { model->restore(path); }).first == EK_ERR_FORMAT;
      };
      const int file = open(path.c_str(), O_RDWR);
      for (int64_t at = 0; at < size; at += step) {
        const uint8_t flipped = good[static_cast<size_t>(at)] ^ static_cast<uint8_t>(1 << at % 8);
        REQUIRE(pwrite(file, &flipped, 1, at) == 1);
        CHECK_CASE(refused(), std::string(kind.name) + ", byte " + std::to_string(at));
        REQUIRE(pwrite(file, &good[static_cast<size_t>(at)], 1, at) == 1);
      }
      REQUIRE_EQ(failure([&] { model->restore(path); }).first, EK_OK);
      for (const int64_t more : {1, 8, 64, 4096}) {
        REQUIRE(ftruncate(file, size + more) == 0);
        CHECK_CASE(refused(), std::string(kind.name) + ", longer by " + std::to_string(more));
      }
      for (int64_t at = size - 1; at >= 0; at -= step) {
        REQUIRE(ftruncate(file, at) == 0);
        CHECK_CASE(refused(), std::string(kind.name) + ", cut to " + std::to_string(at));
      }
      close(file);
    }
  }
}

// A saved file of 70 tokens whose fields lie, under a right checksum.
class Forgery {
 public:
  explicit Forgery(const Kind& kind, int64_t n_ctx = 100) {
    ModelOptions o = with(kind);
    o.n_ctx = n_ctx;
    model_ = small().open(o);
    const auto session = model_->create_session();
    feed(*model_, *session, make_ids(70, 3, kVocab), 70);
    model_->save(*session, path_);
    good_ = read_file(path_);
  }

  template <typename T>
  bool refused(ek_status status, const std::string& part, size_t at, T value) {
    Bytes bytes = good_;
    std::memcpy(&bytes[at], &value, sizeof value);
    return refused(status, part, bytes);
  }

  bool refused(ek_status status, const std::string& part, Bytes bytes) {
    seal(bytes);
    return fails(status, part, [&] { model_->restore(path_); });
  }

  void seal(Bytes& bytes) {
    Xxh64 sum;
    sum.add(bytes.data(), bytes.size() - 8);
    const uint64_t value = sum.value();
    std::memcpy(&bytes[bytes.size() - 8], &value, 8);
    write_file(path_, bytes);
  }

  const Bytes& good() const { return good_; }
  Model& model() { return *model_; }
  const std::string& path() const { return path_; }

 private:
  Folder folder_;
  std::string path_ = folder_.file("s");
  std::unique_ptr<Model> model_;
  Bytes good_;
};

TEST(lying_headers) {
  constexpr size_t kVersion = 8, kMode = 12, kFingerprint = 16, kType = 24, kLayers = 28, kHeads = 32,
                   kDim = 36, kLength = 40, kFilled = 48, kWritten = 56, kFirstId = 64;
  const std::string filled_lies = "of 70 tokens in its cache", written_lies = "blocks as they are written",
                    size_lies = "its content takes";
  const int64_t lowest = std::numeric_limits<int64_t>::min(), highest = std::numeric_limits<int64_t>::max();
  for (const Kind& kind : {kKinds[0], kKinds[1]}) {
    Forgery f(kind);
    const bool int8 = kind.type == KvType::kInt8;
    CHECK(f.refused<uint32_t>(EK_ERR_FORMAT, "version 2", kVersion, 2));
    CHECK(f.refused<uint32_t>(EK_ERR_MISMATCH, "exact mode", kMode, 1));
    CHECK(f.refused<uint32_t>(EK_ERR_FORMAT, "a mode of 2", kMode, 2));
    CHECK(f.refused<uint64_t>(EK_ERR_MISMATCH, "another model", kFingerprint, 1));
    CHECK(f.refused<uint32_t>(EK_ERR_MISMATCH, "a cache of fp32", kType, 1));
    CHECK(f.refused<uint32_t>(EK_ERR_FORMAT, "type 3", kType, 3));
    for (const size_t field : {kLayers, kHeads, kDim}) {
      CHECK(f.refused<uint32_t>(EK_ERR_MISMATCH, "another model", field, 0xFFFFFFFF));
    }
    for (const int64_t filled : {lowest, int64_t{-1}, int64_t{71}, highest, int64_t{69}}) {
      CHECK(f.refused<int64_t>(EK_ERR_FORMAT, filled_lies, kFilled, filled));
    }
    for (const int64_t length : {lowest, int64_t{-1}, int64_t{0}, int64_t{69}}) {
      CHECK(f.refused<int64_t>(EK_ERR_FORMAT, "tokens in its cache", kLength, length));
    }
    CHECK(f.refused<int64_t>(EK_ERR_FORMAT, "tokens in its cache", kLength, 100));
    CHECK(f.refused<int64_t>(EK_ERR_CONTEXT_FULL, "n_ctx is 100", kLength, 101));
    CHECK(f.refused<int64_t>(EK_ERR_CONTEXT_FULL, "n_ctx is 100", kLength, highest));
    // An int8 cache may have 64 of 70 after a cut, but then not the block behind them.
    CHECK(f.refused<int64_t>(EK_ERR_FORMAT, int8 ? written_lies : filled_lies, kFilled, 64));
    for (const uint32_t written : {0u, 3u, 0xFFFFFFFFu}) {
      CHECK(f.refused<uint32_t>(EK_ERR_FORMAT, written_lies, kWritten, written));
    }
    CHECK(f.refused<uint32_t>(EK_ERR_FORMAT, int8 ? size_lies : written_lies, kWritten, 1));
    for (const int32_t id : {-1, static_cast<int32_t>(kVocab), std::numeric_limits<int32_t>::min()}) {
      CHECK(f.refused<int32_t>(EK_ERR_FORMAT, "outside the vocabulary of 40", kFirstId, id));
    }
    Bytes longer = f.good();
    longer.resize(longer.size() + 64);
    CHECK(f.refused(EK_ERR_FORMAT, size_lies, longer));
    CHECK(f.refused(EK_ERR_FORMAT, "not a session file", Bytes(80, 0)));
  }
  // A header that promises a long session costs no memory: the file is too short for it.
  Forgery f(kKinds[0], kMaxContext);
  Bytes bytes = f.good();
  const int64_t many = kMaxContext;
  const uint32_t blocks = static_cast<uint32_t>(many / kCacheBlock);
  for (const size_t field : {kLength, kFilled}) std::memcpy(&bytes[field], &many, 8);
  std::memcpy(&bytes[kWritten], &blocks, 4);
  CHECK(f.refused(EK_ERR_FORMAT, size_lies, bytes));
}

// Keys and values may be any bits: numbers of no sense, but no harm.
TEST(content_of_any_bits) {
  for (const Kind& kind : kKinds) {
    Forgery f(kind);
    for (const int value : {0xFF, 0x7F, 0x7C}) {
      Bytes bytes = f.good();
      std::fill(bytes.begin() + 64 + 320, bytes.end() - 8, static_cast<uint8_t>(value));
      f.seal(bytes);
      const auto session = f.model().restore(f.path());
      feed(f.model(), *session, make_ids(20, 1, kVocab), 7);
    }
  }
}

TEST(what_is_no_file) {
  const Folder folder;
  const auto model = small().open(with(kKinds[0]));
  const auto session = model->create_session();
  const std::string fifo = folder.file("fifo"), missing = folder.path() + "/no/such",
                    file = folder.file("file");
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(fails(EK_ERR_IO, "it is a folder; expected a session file", [&] { model->restore(folder.path()); }));
  CHECK(fails(EK_ERR_IO, "a device or a pipe", [&] { model->restore(fifo); }));
  CHECK(fails(EK_ERR_IO, "a device or a pipe", [&] { model->restore("/dev/zero"); }));
  CHECK(fails(EK_ERR_IO, "No such file", [&] { model->restore(missing); }));
  CHECK(fails(EK_ERR_IO, "it is a folder; give the name", [&] { model->save(*session, folder.path()); }));
  CHECK(fails(EK_ERR_IO, "a device or a pipe", [&] { model->save(*session, fifo); }));
  CHECK(fails(EK_ERR_IO, "a device or a pipe", [&] { model->save(*session, "/dev/null"); }));
  CHECK(fails(EK_ERR_IO, "No such file", [&] { model->save(*session, missing); }));
  CHECK(fails(EK_ERR_IO, "too long", [&] { model->save(*session, folder.file(std::string(300, 'x'))); }));
  write_file(file, {});
  CHECK(fails(EK_ERR_FORMAT, "not a session file", [&] { model->restore(file); }));
  CHECK(folder.names().size() == 2);
}

}  // namespace

int main() { return run_tests(); }
