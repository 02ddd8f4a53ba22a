// Opens each file named on the command line and prints one line for it: "ok", or "error" and the message.
// With --dump, an accepted file's content follows, in the form that tests/test_native_reader.py gives it too.
#include <cstdio>
#include <cstring>
#include <string>

#include "io/nb_file.h"

using namespace edge_kit;

namespace {

void print_text(const std::string& text) {
  std::printf(" ");
  for (unsigned char c : text) std::printf(c > 32 && c < 127 && c != '\\' ? "%c" : "\\x%02x", c);
}

void print_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (value == value) {
    std::printf(" %08x", static_cast<unsigned>(bits));
  } else {
    std::printf(" nan");
  }
}

void print_integer(int64_t value) { std::printf(" %lld", static_cast<long long>(value)); }

void dump_attribute(const std::string& name, const Attribute& attribute) {
  using Kind = Attribute::Kind;
  std::printf(" attr");
  print_text(name);
  switch (attribute.kind) {
    case Kind::kInt:
      std::printf(" INT");
      print_integer(attribute.i);
      break;
    case Kind::kLong:
      std::printf(" LONG");
      print_integer(attribute.i);
      break;
    case Kind::kBool:
      std::printf(" BOOLEAN");
      print_integer(attribute.i);
      break;
    case Kind::kFloat:
      std::printf(" FLOAT");
      print_float(attribute.f);
      break;
    case Kind::kString:
      std::printf(" STRING");
      print_text(attribute.s);
      break;
    case Kind::kStrings:
      std::printf(" STRINGS");
      for (const std::string& value : attribute.strings) print_text(value);
      break;
    case Kind::kInts:
    case Kind::kLongs:
      std::printf(attribute.kind == Kind::kInts ? " INTS" : " LONGS");
      for (int64_t value : attribute.ints) print_integer(value);
      break;
    case Kind::kFloats:
      std::printf(" FLOATS");
      for (float value : attribute.floats) print_float(value);
      break;
    case Kind::kOther:
      std::printf(" other");
      break;
  }
  std::printf("\n");
}

void dump_arguments(const char* side, const std::map<std::string, std::vector<std::string>>& arguments) {
  for (const auto& argument : arguments) {
    std::printf(" %s", side);
    print_text(argument.first);
    for (const std::string& name : argument.second) print_text(name);
    std::printf("\n");
  }
}

void dump_shape(const std::vector<int64_t>& shape) {
  for (int64_t size : shape) print_integer(size);
  std::printf("\n");
}

void dump(const NbFile& file) {
  std::printf("version");
  print_text(file.opt_version());
  std::printf("\n");
  for (const Op& op : file.ops()) {
    std::printf("op");
    print_text(op.type);
    std::printf("\n");
    dump_arguments("in", op.inputs);
    dump_arguments("out", op.outputs);
    for (const auto& attribute : op.attributes) dump_attribute(attribute.first, attribute.second);
    for (const auto& output : op.outputs) {
      for (const std::string& name : output.second) {
        DataType type;
        std::vector<int64_t> shape;
        if (!file.variable(name, &type, &shape)) continue;
        std::printf(" var");
        print_text(name);
        std::printf(" %s", type_name(type));
        dump_shape(shape);
      }
    }
  }
  for (const Tensor& tensor : file.tensors()) {
    unsigned long long sum = 0;  // of byte times place
    for (size_t i = 0; i < tensor.bytes; ++i) sum += (i + 1) * tensor.data[i];
    std::printf("tensor");
    print_text(tensor.name);
    std::printf(" %s %llu", type_name(tensor.type), sum);
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
