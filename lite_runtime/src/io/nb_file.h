// A Paddle Lite naive_buffer file (meta version 2), mapped and checked.
//
// Every offset of the container and of the FlatBuffers tables is bounds-checked when the file is opened;
// after that, tensors are plain pointers into the mapping. Owner: NbFile owns the mapping, every
// pointer dies with it. Threads: immutable after open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/status.h"

namespace edge_kit {

enum class DataType { kBool, kInt8, kUInt8, kInt16, kInt32, kInt64, kFloat16, kFloat32, kFloat64, kOther };
size_t element_size(DataType type);  // 0 for kOther
const char* type_name(DataType type);

struct Tensor {
  std::string name;
  DataType type;
  std::vector<int64_t> shape;
  const uint8_t* data;  // into the mapping
  size_t bytes;         // equals element_size * product(shape)
};

struct Attribute {
  enum class Kind { kInt, kFloat, kBool, kString, kLong, kInts, kFloats, kLongs, kStrings, kOther };
  Kind kind = Kind::kOther;
  int64_t i = 0;  // kInt, kLong, kBool
  float f = 0;
  std::string s;
  std::vector<int64_t> ints;  // kInts, kLongs
  std::vector<float> floats;
  std::vector<std::string> strings;
};

struct Op {
  std::string type;
  std::map<std::string, std::vector<std::string>> inputs;   // parameter ("X") -> variable names
  std::map<std::string, std::vector<std::string>> outputs;
  std::map<std::string, Attribute> attributes;
};

class NbFile {
 public:
  static std::unique_ptr<NbFile> open(const std::string& path);
  // `data` is borrowed and must outlive the object; `label` stands for the path in messages.
  static std::unique_ptr<NbFile> from_memory(const void* data, size_t size, const std::string& label);
  virtual ~NbFile() = default;

  virtual const std::string& path() const = 0;
  virtual const std::string& opt_version() const = 0;
  virtual const std::vector<Op>& ops() const = 0;  // block 0, in program order
  virtual const std::vector<Tensor>& tensors() const = 0;
  virtual const Tensor* find(const std::string& name) const = 0;  // null if absent
  // Data type and shape (-1 = dynamic) that the program declares for a variable; false if unknown.
  virtual bool variable(const std::string& name, DataType* type, std::vector<int64_t>* shape) const = 0;
  virtual const uint8_t* data() const = 0;  // whole mapping
  virtual size_t size() const = 0;
  // Tells the system that [begin, end) is read for every token; nothing happens for borrowed memory.
  virtual void will_stream(const uint8_t* /*begin*/, const uint8_t* /*end*/) {}
};

}  // namespace edge_kit
