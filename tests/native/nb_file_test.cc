#include "io/nb_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include "test.h"
#include "nb_builder.h"

using namespace edge_kit;

namespace {

const nb::Bytes kWeight = {1, 2, 3, 4, 5, 255};         // int8 [2, 3]
const nb::Bytes kScale = {0, 0, 128, 63, 0, 0, 0, 64};  // fp32 [2] = 1, 2

nb::Bytes sample_program() {
  using nb::attribute;
  using nb::text;
  const auto matmul = nb::op(
      "matmul_v2", {nb::argument("X", {text("x")}), nb::argument("Y", {text("w")})},
      {nb::argument("Out", {text("y")})},
      {attribute("an_int", 0, 2, nb::scalar(int32_t{-7})), attribute("a_float", 1, 3, nb::scalar(0.5f)),
       attribute("a_string", 2, 4, text("matmul_v2/def/2/1/1")),
       attribute("ints", 3, 5, nb::numbers<int32_t>({1, -2, 3})),
       attribute("floats", 4, 6, nb::numbers<float>({0.25f, -1.0f})),
       attribute("strings", 5, 7, nb::list({text("a"), text("bc")})),
       attribute("a_bool", 6, 8, nb::scalar(uint8_t{1})),
       attribute("bools", 7, 9, nb::numbers<uint8_t>({1, 0})),
       attribute("a_block", 8, 10, nb::scalar(int32_t{0})),
       attribute("a_long", 9, 11, nb::scalar(int64_t{1} << 40)),
       attribute("blocks", 10, 12, nb::numbers<int32_t>({0})),
       attribute("longs", 11, 13, nb::numbers<int64_t>({-1, int64_t{1} << 40})),
       attribute("absent", 3, 2, nb::scalar(int32_t{0}))});
  return nb::program({nb::op("feed", {}, {nb::argument("Out", {text("x")})}, {}), matmul},
                     {nb::variable("x", nb::kFloat32, {1, -1, 3}, false),
                      nb::variable("w", nb::kInt8, {2, 3}, true),
                      nb::variable("scale", nb::kFloat32, {2}, true)});
}

std::vector<nb::Bytes> sample_params() {
  return {nb::param("w", nb::kInt8, {2, 3}, kWeight), nb::param("scale", nb::kFloat32, {2}, kScale)};
}

// The reader sees exactly these bytes: the sanitizer reports one byte read past their end.
std::unique_ptr<NbFile> open_copy(const nb::Bytes& bytes, std::unique_ptr<uint8_t[]>* memory) {
  memory->reset(new uint8_t[bytes.size()]);
  std::copy(bytes.begin(), bytes.end(), memory->get());
  return NbFile::from_memory(memory->get(), bytes.size(), "sample.nb");
}

void open_and_drop(const nb::Bytes& bytes) {
  std::unique_ptr<uint8_t[]> memory;
  open_copy(bytes, &memory);
}

// True if opened; anything but a typed format error is a failure of the test.
bool opens(const nb::Bytes& bytes) {
  try {
    open_and_drop(bytes);
    return true;
  } catch (const Error& error) {
    REQUIRE_EQ(static_cast<int>(error.status()), static_cast<int>(EK_ERR_FORMAT));
    REQUIRE(std::string(error.what()).find("sample.nb: ") == 0);
    return false;
  }
}

nb::Bytes bytes_of(const std::string& text) { return nb::Bytes(text.begin(), text.end()); }

class TemporaryFile {
 public:
  TemporaryFile() : path_("/tmp/edge_kit_test_XXXXXX") {
    const int fd = mkstemp(&path_[0]);
    REQUIRE(fd >= 0);
    ::close(fd);
  }
  ~TemporaryFile() { unlink(path_.c_str()); }
  void write(const nb::Bytes& bytes) const {
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

TEST(reads_ops_in_program_order) {
  std::unique_ptr<uint8_t[]> memory;
  const auto file = open_copy(nb::file(sample_program(), sample_params()), &memory);
  REQUIRE_EQ(file->opt_version(), "v2.13-rc");
  REQUIRE_EQ(file->ops().size(), 2u);
  REQUIRE_EQ(file->ops()[0].type, "feed");
  const Op& op = file->ops()[1];
  REQUIRE_EQ(op.type, "matmul_v2");
  REQUIRE_EQ(op.inputs.at("X").at(0), "x");
  REQUIRE_EQ(op.inputs.at("Y").at(0), "w");
  REQUIRE_EQ(op.outputs.at("Out").at(0), "y");
}

TEST(reads_every_kind_of_attribute) {
  using Kind = Attribute::Kind;
  std::unique_ptr<uint8_t[]> memory;
  const auto file = open_copy(nb::file(sample_program(), sample_params()), &memory);
  const auto& attributes = file->ops()[1].attributes;
  REQUIRE(attributes.at("an_int").kind == Kind::kInt);
  REQUIRE_EQ(attributes.at("an_int").i, -7);
  REQUIRE(attributes.at("a_long").kind == Kind::kLong);
  REQUIRE_EQ(attributes.at("a_long").i, int64_t{1} << 40);
  REQUIRE(attributes.at("a_bool").kind == Kind::kBool);
  REQUIRE_EQ(attributes.at("a_bool").i, 1);
  REQUIRE(attributes.at("a_float").kind == Kind::kFloat);
  REQUIRE_EQ(attributes.at("a_float").f, 0.5f);
  REQUIRE(attributes.at("a_string").kind == Kind::kString);
  REQUIRE_EQ(attributes.at("a_string").s, "matmul_v2/def/2/1/1");
  REQUIRE(attributes.at("ints").ints == (std::vector<int64_t>{1, -2, 3}));
  REQUIRE(attributes.at("longs").ints == (std::vector<int64_t>{-1, int64_t{1} << 40}));
  REQUIRE(attributes.at("floats").floats == (std::vector<float>{0.25f, -1.0f}));
  REQUIRE(attributes.at("strings").strings == (std::vector<std::string>{"a", "bc"}));
  for (const char* name : {"bools", "a_block", "blocks"}) REQUIRE(attributes.at(name).kind == Kind::kOther);
  REQUIRE(attributes.at("absent").kind == Kind::kInts);
  REQUIRE(attributes.at("absent").ints.empty());
}

TEST(reads_declared_variables) {
  std::unique_ptr<uint8_t[]> memory;
  const auto file = open_copy(nb::file(sample_program(), sample_params()), &memory);
  DataType type;
  std::vector<int64_t> shape;
  REQUIRE(file->variable("x", &type, &shape));
  REQUIRE(type == DataType::kFloat32);
  REQUIRE(shape == (std::vector<int64_t>{1, -1, 3}));
  REQUIRE(!file->variable("y", &type, &shape));
}

TEST(tensors_are_pointers_into_the_memory) {
  std::unique_ptr<uint8_t[]> memory;
  const auto file = open_copy(nb::file(sample_program(), sample_params()), &memory);
  REQUIRE_EQ(file->tensors().size(), 2u);
  const Tensor* weight = file->find("w");
  REQUIRE(weight != nullptr && weight->type == DataType::kInt8);
  REQUIRE(weight->shape == (std::vector<int64_t>{2, 3}));
  REQUIRE(nb::Bytes(weight->data, weight->data + weight->bytes) == kWeight);
  REQUIRE(weight->data > memory.get() && weight->data < memory.get() + file->size());
  REQUIRE(file->find("nothing") == nullptr);
}

TEST(unaligned_floats_are_readable_as_floats) {
  int copied = 0;
  for (size_t padding = 0; padding < 8; ++padding) {
    std::unique_ptr<uint8_t[]> memory;
    const auto file = open_copy(nb::file(nb::program({}, {}), {sample_params()[1]}, padding), &memory);
    const Tensor* scale = file->find("scale");
    REQUIRE_EQ(reinterpret_cast<uintptr_t>(scale->data) % 4, 0u);
    REQUIRE_EQ(reinterpret_cast<const float*>(scale->data)[1], 2.0f);
    copied += scale->data < memory.get() || scale->data >= memory.get() + file->size();
  }
  REQUIRE_EQ(copied, 6);  // of 8 places, 2 are multiples of 4
}

TEST(bytes_after_the_last_tensor_are_ignored) {
  nb::Bytes bytes = nb::file(sample_program(), sample_params());
  bytes.resize(bytes.size() + 1000, 'P');
  REQUIRE(opens(bytes));
}

TEST(names_what_is_not_a_nb_file) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "an empty file"},
      {"<!DOCTYPE html><html><head>", "a web page"},
      {"\n  <HTML lang=en>", "a web page"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a", "git-LFS pointer"},
      {"GGUF\3", "a GGUF checkpoint"},
      {"PK\3\4 and more of it", "a zip archive"},
      {std::string("\x40\0\0\0\0\0\0\0{\"a\":", 13) + std::string(100, ' '), "a safetensors checkpoint"},
      {"{\"base_code\": {}}", "a JSON text"},
      {std::string(100, '\0'), "zeros"},
      {"Dear reader, this is a letter.", "a text"},
      {"\xfe\xed\xfa\xce\x01\x02", "bytes of an unknown kind"},
  };
  for (const auto& item : cases) REQUIRE_THROWS(open_and_drop(bytes_of(item.first)), Error, item.second);
}

TEST(another_meta_version_is_named) {
  nb::Bytes bytes = nb::file(sample_program(), sample_params());
  bytes[0] = 1;
  REQUIRE_THROWS(open_and_drop(bytes), Error, "meta version 1");
}

TEST(short_missing_and_damaged_are_different_messages) {
  nb::Bytes bytes = nb::file(sample_program(), sample_params());
  bytes.pop_back();
  REQUIRE_THROWS(open_and_drop(bytes), Error, "truncated: tensor 2 of 2 (after w)");
  const nb::Bytes weight = sample_params()[0];
  REQUIRE_THROWS(open_and_drop(nb::file(sample_program(), {weight})), Error, "uses the parameter scale");
  REQUIRE_THROWS(open_and_drop(nb::file(sample_program(), {weight, weight})), Error,
                 "two tensors are named w");
  bytes = nb::file(sample_program(), sample_params());
  nb::patch(bytes, 26, uint32_t{0x7FFFFFFF});  // the program's root
  REQUIRE_THROWS(open_and_drop(bytes), Error, "damaged at byte");
}

TEST(shape_and_bytes_must_agree) {
  const auto with = [](const std::vector<int64_t>& shape, size_t bytes) {
    const nb::Bytes weight = nb::param("w", nb::kInt8, shape, nb::Bytes(bytes));
    return nb::file(sample_program(), {weight, sample_params()[1]});
  };
  REQUIRE(opens(with({2, 3}, 6)));
  REQUIRE(opens(with({}, 1)));
  REQUIRE(opens(with({0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0}, 0)));
  REQUIRE_THROWS(open_and_drop(with({2, 3}, 5)), Error, "tensor w: int8 [2, 3]");
  REQUIRE_THROWS(open_and_drop(with({-2, -3}, 6)), Error, "a shape of [-2, -3]");
  REQUIRE_THROWS(open_and_drop(with({int64_t{1} << 32}, 6)), Error, "a shape of [4294967296]");
  // 2^32 * 2^32 wraps to 0 in 64 bits.
  REQUIRE_THROWS(open_and_drop(with({65536, 65536, 65536, 65536}, 0)), Error, "does not take");
  REQUIRE_THROWS(open_and_drop(with(std::vector<int64_t>(17, 1), 1)), Error, "a shape of");
}

TEST(several_blocks_are_refused_by_name) {
  const nb::Value block = nb::table({});
  const nb::Bytes program = nb::flat_buffer({{0, nb::list({block, block})}});
  REQUIRE_THROWS(open_and_drop(nb::file(program, {})), Error, "2 blocks");
}

TEST(names_must_be_utf8) {
  const std::pair<std::string, bool> cases[] = {
      {"w\xc3\xa9", true},         {"\xe4\xbb\x8a", true},     {"\xf0\x9f\x98\x80", true},
      {"\xc0\xaf", false},         {"\xed\xa0\x80", false},    {"\xf4\x90\x80\x80", false},
      {"\xe4\xbb", false},         {"\x80", false},            {"\xe0\x9f\xbf", false},
  };
  for (const auto& item : cases) {
    REQUIRE_EQ(opens(nb::file(nb::program({}, {}), {nb::param(item.first, nb::kInt8, {1}, {0})})),
               item.second);
  }
}

TEST(every_cut_is_refused) {
  const nb::Bytes bytes = nb::file(sample_program(), sample_params());
  for (size_t size = 0; size < bytes.size(); ++size) {
    REQUIRE(!opens(nb::Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size))));
  }
}

TEST(no_changed_byte_leads_outside) {
  const nb::Bytes bytes = nb::file(sample_program(), sample_params());
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (uint8_t value : {0, 1, 4, 0x7F, 0x80, 0xFC, 0xFF}) {
      nb::Bytes changed = bytes;
      changed[i] = value;
      opens(changed);
    }
  }
}

TEST(tables_shared_again_and_again_end_soon) {
  const nb::Value name = nb::text(std::string(1000, 'a'));
  const nb::Value many = nb::repeated(nb::argument("X", {name}), 5000);
  const nb::Value op = nb::table({{0, nb::text("op")}, {1, many}});
  const nb::Bytes program = nb::flat_buffer({{0, nb::list({nb::table({{3, nb::repeated(op, 5000)}})})}});
  const auto start = std::chrono::steady_clock::now();
  REQUIRE_THROWS(open_and_drop(nb::file(program, {})), Error, "overlap so often");
  REQUIRE(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST(unreadable_paths_are_io_errors) {
  REQUIRE_THROWS(NbFile::open("/nonexistent.nb"), Error, "/nonexistent.nb: cannot be read: No such file");
  REQUIRE_THROWS(NbFile::open("/tmp"), Error, "it is a folder");
  REQUIRE_THROWS(NbFile::open("/dev/null"), Error, "a device or a pipe");
  TemporaryFile empty;
  REQUIRE_THROWS(NbFile::open(empty.path()), Error, "an empty file");
}

TEST(opens_a_file_from_disk) {
  TemporaryFile temporary;
  temporary.write(nb::file(sample_program(), sample_params()));
  const auto file = NbFile::open(temporary.path());
  REQUIRE_EQ(file->path(), temporary.path());
  REQUIRE_EQ(file->find("w")->data[5], 255);
}

#ifdef __linux__
int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size, resident;
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(an_open_file_is_hardly_resident) {
  TemporaryFile temporary;
  {
    std::vector<nb::Bytes> params = sample_params();
    for (int i = 0; i < 256; ++i) {
      params.push_back(nb::param("t" + std::to_string(i), nb::kInt8, {1 << 17}, nb::Bytes(1 << 17)));
    }
    temporary.write(nb::file(sample_program(), params));
  }
  const int64_t before = resident_bytes();
  const auto file = NbFile::open(temporary.path());
  const int64_t grown = resident_bytes() - before;
  REQUIRE(file->size() > (32u << 20));
  REQUIRE(grown < static_cast<int64_t>(file->size() / 10));
}

// Pages of the file in the page cache, before `leave` and after the file has been opened.
std::pair<size_t, size_t> cached_pages(const std::string& path, bool leave) {
  const int fd = open(path.c_str(), O_RDONLY);
  const size_t size = static_cast<size_t>(lseek(fd, 0, SEEK_END));
  void* mapping = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  const auto count = [&] {
    std::vector<unsigned char> states(size / static_cast<size_t>(sysconf(_SC_PAGESIZE)) + 1);
    mincore(mapping, size, states.data());
    const auto is_cached = [](unsigned char state) { return (state & 1) != 0; };
    return static_cast<size_t>(std::count_if(states.begin(), states.end(), is_cached));
  };
  fsync(fd);
  if (leave) posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  const size_t before = count();
  NbFile::open(path);
  const size_t after = count();
  munmap(mapping, size);
  close(fd);
  return {before, after};
}

TEST(opening_neither_fills_nor_empties_the_page_cache) {
  TemporaryFile temporary;
  std::vector<nb::Bytes> params = sample_params();
  params.push_back(nb::param("t", nb::kInt8, {1 << 24}, nb::Bytes(1 << 24)));
  temporary.write(nb::file(sample_program(), params));
  const auto [warm, still_warm] = cached_pages(temporary.path(), false);
  REQUIRE(warm >= (1u << 24) / static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  REQUIRE_EQ(still_warm, warm);
  const auto [cold, still_cold] = cached_pages(temporary.path(), true);
  // A file system in memory has no cold files, and an emulator may ignore what the system is told of mappings.
  if (cold > 0 || std::getenv("EDGE_KIT_EMULATED") != nullptr) return;
  REQUIRE_EQ(still_cold, 0u);
}
#endif

int main() { return edge_kit_test::run_tests(); }
