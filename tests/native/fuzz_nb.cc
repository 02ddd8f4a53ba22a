// Opens each file named on the command line and prints one line for it: "ok", or "error" and the message.
// With --dump, an accepted file's content follows, in the form that tests/test_native_reader.py gives it too.
#include <cstdio>
#include <cstring>
#include <string>

#include "io/nb_file.h"

using namespace edge_kit;

namespace {

unsigned bits(float value) {
  unsigned result;
  std::memcpy(&result, &value, sizeof result);
  return result;
}

void dump_attribute(const std::string& name, const Attribute& attribute) {
  using Kind = Attribute::Kind;
  std::printf(" attr %s", name.c_str());
  switch (attribute.kind) {
    case Kind::kInt: std::printf(" int %lld", static_cast<long long>(attribute.i)); break;
    case Kind::kLong: std::printf(" long %lld", static_cast<long long>(attribute.i)); break;
    case Kind::kBool: std::printf(" bool %lld", static_cast<long long>(attribute.i)); break;
    case Kind::kFloat: std::printf(" float %08x", bits(attribute.f)); break;
    case Kind::kString: std::printf(" string %s", attribute.s.c_str()); break;
    case Kind::kStrings:
      std::printf(" strings");
      for (const std::string& value : attribute.strings) std::printf(" %s", value.c_str());
      break;
    case Kind::kInts:
    case Kind::kLongs:
      std::printf(attribute.kind == Kind::kInts ? " ints" : " longs");
      for (int64_t value : attribute.ints) std::printf(" %lld", static_cast<long long>(value));
      break;
    case Kind::kFloats:
      std::printf(" floats");
      for (float value : attribute.floats) std::printf(" %08x", bits(value));
      break;
    case Kind::kOther: std::printf(" other"); break;
  }
  std::printf("\n");
}

void dump_arguments(const char* side, const std::map<std::string, std::vector<std::string>>& arguments) {
  for (const auto& argument : arguments) {
    std::printf(" %s %s", side, argument.first.c_str());
    for (const std::string& name : argument.second) std::printf(" %s", name.c_str());
    std::printf("\n");
  }
}

void dump_shape(const std::vector<int64_t>& shape) {
  for (int64_t size : shape) std::printf(" %lld", static_cast<long long>(size));
  std::printf("\n");
}

void dump(const NbFile& file) {
  std::printf("version %s\n", file.opt_version().c_str());
  for (const Op& op : file.ops()) {
    std::printf("op %s\n", op.type.c_str());
    dump_arguments("in", op.inputs);
    dump_arguments("out", op.outputs);
    for (const auto& attribute : op.attributes) dump_attribute(attribute.first, attribute.second);
    for (const auto& output : op.outputs) {
      for (const std::string& name : output.second) {
        DataType type;
        std::vector<int64_t> shape;
        if (!file.variable(name, &type, &shape)) continue;
        std::printf(" var %s %s", name.c_str(), type_name(type));
        dump_shape(shape);
      }
    }
  }
  for (const Tensor& tensor : file.tensors()) {
    unsigned long long sum = 0;
    for (size_t i = 0; i < tensor.bytes; ++i) sum = sum * 31 + tensor.data[i];
    std::printf("tensor %s %s %zu %llx", tensor.name.c_str(), type_name(tensor.type), tensor.bytes, sum);
    dump_shape(tensor.shape);
  }
}

}  // namespace

int main(int count, char** arguments) {
  bool with_content = false;
  for (int i = 1; i < count; ++i) {
    if (std::strcmp(arguments[i], "--dump") == 0) {
      with_content = true;
      continue;
    }
    try {
      const auto file = NbFile::open(arguments[i]);
      std::printf("ok\n");
      if (with_content) dump(*file);
    } catch (const Error& error) {
      std::printf("error %d %s\n", static_cast<int>(error.status()), error.what());
    }
    std::fflush(stdout);
  }
  return 0;
}
