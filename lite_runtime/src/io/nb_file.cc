#include "io/nb_file.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "io/flat_reader.h"
#include "io/little_endian.h"
#include "io/mapped_file.h"
#include "io/program_reader.h"
#include "io/signature.h"

namespace edge_kit {
namespace {

constexpr uint64_t kFileHeaderBytes = 26;     // u16 meta version, char[16] opt version, u64 program bytes
constexpr uint64_t kParamsHeaderBytes = 12;   // u16 0, u16 0, u16 6, u16 tensor count, u32 largest tensor
constexpr uint64_t kRecordHeaderBytes = 8;    // u32 total, u32 offset
constexpr size_t kOptVersionBytes = 16;
constexpr unsigned kMetaVersion = 2;
constexpr size_t kMaxDims = 16;
constexpr int64_t kMaxDim = 0xFFFFFFFF;

// Slots of the ParamDesc tables.
enum { kParamName = 1, kParamVariableType = 2, kParamVariable = 3 };
enum { kTensorDim = 2, kTensorDataType = 3, kTensorData = 4 };
constexpr int kLoDTensor = 1;  // value of kParamVariableType

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size() && i < kMaxDims; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

// False if the product needs more than 64 bits.
bool byte_count(size_t element, const std::vector<int64_t>& shape, uint64_t* bytes) {
  *bytes = element;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) *bytes = 0;
  for (int64_t size : shape) {
    if (*bytes != 0 && static_cast<uint64_t>(size) > UINT64_MAX / *bytes) return false;
    *bytes *= static_cast<uint64_t>(size);
  }
  return true;
}

// Memory for the tensors whose data is not aligned to their element: files that opt wrote start a tensor
// anywhere, and a float behind an odd address may not be read as a float. Such tensors are copied when the
// file is opened; in files of this kit, whose tensors start at multiples of 64, there are none.
class AlignedCopies {
 public:
  const uint8_t* add(const uint8_t* data, size_t bytes) {
    copies_.emplace_back(new uint64_t[(bytes + 7) / 8]);
    std::memcpy(copies_.back().get(), data, bytes);
    return reinterpret_cast<const uint8_t*>(copies_.back().get());
  }

 private:
  std::vector<std::unique_ptr<uint64_t[]>> copies_;
};

class NbFileReader : public NbFile {
 public:
  NbFileReader(const uint8_t* data, uint64_t size, const std::string& label,
               std::unique_ptr<MappedFile> mapping)
      : mapping_(std::move(mapping)), path_(label), data_(data), size_(size) {
    read_program(read_header());
    read_tensors();
    check_parameters();
  }

  const std::string& path() const override { return path_; }
  const std::string& opt_version() const override { return opt_version_; }
  const std::vector<Op>& ops() const override { return program_.ops; }
  const std::vector<Tensor>& tensors() const override { return tensors_; }
  const uint8_t* data() const override { return data_; }
  size_t size() const override { return static_cast<size_t>(size_); }
  void will_stream(const uint8_t* begin, const uint8_t* end) override {
    if (mapping_ != nullptr) mapping_->will_stream(begin, end);
  }

  const Tensor* find(const std::string& name) const override {
    const auto found = tensor_index_.find(name);
    return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
  }

  bool variable(const std::string& name, DataType* type, std::vector<int64_t>* shape) const override {
    const auto found = program_.variables.find(name);
    if (found == program_.variables.end() || !found->second.has_tensor) return false;
    *type = found->second.type;
    *shape = found->second.shape;
    return true;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(EK_ERR_FORMAT, path_ + ": " + problem);
  }

  // The file has `needed` bytes from `position` on, or it was cut short.
  void require(uint64_t needed, uint64_t position, const std::string& what) const {
    if (position <= size_ && needed <= size_ - position) return;
    fail("truncated: " + what + " needs " + std::to_string(needed) + " bytes from byte " +
         std::to_string(position) + " on, the file ends at " + std::to_string(size_) +
         ". Copy or download it again.");
  }

  uint64_t read_header() {  // gives the bytes of the program
    const bool has_version = size_ >= 2;
    const unsigned meta_version = has_version ? load<uint16_t>(data_) : 0;
    std::string version;
    if (has_version) {
      const auto* text = reinterpret_cast<const char*>(data_ + 2);
      const size_t length = static_cast<size_t>(std::min<uint64_t>(kOptVersionBytes, size_ - 2));
      version.assign(text, std::find(text, text + length, '\0'));
    }
    if (size_ == 0 || (has_version && meta_version != kMetaVersion)) {
      const bool looks_like_nb = size_ >= kFileHeaderBytes && version.size() > 1 && version[0] == 'v' &&
                                 std::isdigit(static_cast<unsigned char>(version[1]));
      if (looks_like_nb) {
        fail("a .nb file of meta version " + std::to_string(meta_version) +
             "; this kit reads version 2. Convert the model again with the opt of Paddle Lite 2.10 to 2.13.");
      }
      fail("not a .nb file but " + name_content(data_, size_) +
           ". Expected a file that edge-kit export or paddle_lite_opt wrote.");
    }
    require(kFileHeaderBytes, 0, "the header");
    for (char& c : version) {
      if (c < 32 || c > 126) c = '?';
    }
    opt_version_ = version;
    return load<uint64_t>(data_ + 2 + kOptVersionBytes);
  }

  void read_program(uint64_t bytes) {
    require(bytes, kFileHeaderBytes, "the program");
    FlatBuffer buffer(data_ + kFileHeaderBytes, bytes, kFileHeaderBytes, path_);
    program_ = edge_kit::read_program(buffer, path_);
    params_begin_ = kFileHeaderBytes + bytes;
  }

  void read_tensors() {
    uint64_t position = params_begin_;
    require(kParamsHeaderBytes, position, "the parameters' header");
    const uint8_t* header = data_ + position;
    const unsigned version = load<uint16_t>(header), meta_bytes = load<uint16_t>(header + 2);
    const unsigned header_bytes = load<uint16_t>(header + 4), count = load<uint16_t>(header + 6);
    if (version != 0 || meta_bytes != 0 || header_bytes != 6) {
      fail("damaged at byte " + std::to_string(position) + ": the parameters' header is " +
           std::to_string(version) + ", " + std::to_string(meta_bytes) + ", " + std::to_string(header_bytes) +
           "; expected 0, 0, 6");
    }
    position += kParamsHeaderBytes;
    for (unsigned i = 0; i < count; ++i) {
      std::string what = "tensor " + std::to_string(i + 1) + " of " + std::to_string(count);
      if (i > 0) what += " (after " + tensors_.back().name + ")";
      position = read_record(position, what);
    }
  }

  uint64_t read_record(uint64_t position, const std::string& what) {  // gives where the next one starts
    require(kRecordHeaderBytes, position, what);
    const uint64_t total = load<uint32_t>(data_ + position), offset = load<uint32_t>(data_ + position + 4);
    if (offset < 4 || offset > total) {
      fail("damaged at byte " + std::to_string(position) + ": " + what + " has an offset of " +
           std::to_string(offset) + " in a record of " + std::to_string(total) + " bytes");
    }
    require(4 + total, position, what);
    const uint64_t begin = position + 4 + offset;
    FlatBuffer buffer(data_ + begin, total - offset, begin, path_);
    read_param(buffer, what);
    return position + 4 + total;
  }

  void read_param(FlatBuffer& buffer, const std::string& record) {
    FlatTable param = FlatTable::root(buffer, record);
    Tensor tensor;
    tensor.name = param.required_text(kParamName);
    const std::string what = "tensor " + tensor.name.substr(0, 64);
    param.rename(what);
    const int kind = param.scalar<uint8_t>(kParamVariableType, 0);
    if (kind != kLoDTensor) {
      param.fail("a parameter of kind " + std::to_string(kind) + "; expected " + std::to_string(kLoDTensor));
    }
    const FlatTable table = param.required_table(kParamVariable, what);
    tensor.type = read_element_type(table.scalar<int32_t>(kTensorDataType, 0), table);
    tensor.shape = table.scalars<int64_t>(kTensorDim);
    uint64_t first, bytes, expected;
    table.span(kTensorData, 1, &first, &bytes);
    const bool in_range = std::all_of(tensor.shape.begin(), tensor.shape.end(),
                                      [](int64_t size) { return size >= 0 && size <= kMaxDim; });
    if (tensor.shape.size() > kMaxDims || !in_range) table.fail("a shape of " + shape_text(tensor.shape));
    const bool fits = byte_count(element_size(tensor.type), tensor.shape, &expected);
    if (!fits || expected != bytes) {
      table.fail(std::string(type_name(tensor.type)) + " " + shape_text(tensor.shape) +
                 " does not take the " + std::to_string(bytes) + " bytes that are there");
    }
    tensor.bytes = static_cast<size_t>(bytes);
    tensor.data = buffer.data() + first;
    if (reinterpret_cast<uintptr_t>(tensor.data) % element_size(tensor.type) != 0) {
      tensor.data = copies_.add(tensor.data, tensor.bytes);
    }
    if (!tensor_index_.emplace(tensor.name, tensors_.size()).second) {
      fail("damaged: two tensors are named " + tensor.name);
    }
    tensors_.push_back(std::move(tensor));
  }

  void check_parameters() const {
    for (const std::string& name : program_.parameters) {
      if (find(name) != nullptr) continue;
      fail("the program uses the parameter " + name + ", which is not among the file's " +
           std::to_string(tensors_.size()) + " tensors. Export the model again.");
    }
  }

  std::unique_ptr<MappedFile> mapping_;  // null for borrowed memory
  std::string path_;
  const uint8_t* data_;
  uint64_t size_;
  uint64_t params_begin_ = 0;
  std::string opt_version_;
  Program program_;
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string, size_t> tensor_index_;
  AlignedCopies copies_;
};

}  // namespace

std::unique_ptr<NbFile> NbFile::open(const std::string& path) {
  auto mapping = std::make_unique<MappedFile>(path);
  MappedFile& mapped = *mapping;
  auto file = std::make_unique<NbFileReader>(mapped.data(), mapped.size(), path, std::move(mapping));
  mapped.end_of_open();
  return file;
}

std::unique_ptr<NbFile> NbFile::from_memory(const void* data, size_t size, const std::string& label) {
  return std::make_unique<NbFileReader>(static_cast<const uint8_t*>(data), size, label, nullptr);
}

}  // namespace edge_kit
