#include "io/program_reader.h"

#include <utility>

namespace edge_kit {
namespace {

// Slots of the tables, in the order of Paddle Lite's framework.fbs.
enum { kProgramBlocks = 0, kProgramVersion = 1 };
enum { kVersionNumber = 0 };
enum { kBlockVars = 2, kBlockOps = 3 };
enum { kOpType, kOpInputs, kOpOutputs, kOpAttrs };
enum { kArgumentParameter, kArgumentNames };
enum {
  kAttrName, kAttrType, kAttrI, kAttrF, kAttrS, kAttrInts, kAttrFloats, kAttrStrings,
  kAttrB, kAttrBools, kAttrBlock, kAttrL, kAttrBlocks, kAttrLongs
};
enum { kVarName, kVarType, kVarPersistable };
enum { kVarTypeType = 0, kVarTypeLoDTensor = 2 };
enum { kLoDTensorTensor = 0 };
enum { kTensorDescDataType, kTensorDescDims };

// Values of AttrType.
enum {
  kInt, kFloat, kString, kInts, kFloats, kStrings,
  kBoolean, kBooleans, kBlockIndex, kLong, kBlockIndices, kLongs
};

// Values of VarType: element types and kinds of variables share one enumeration, 16 is unused.
constexpr int32_t kVarLoDTensor = 7, kVarUnused = 16, kVarLast = 21;

struct Element {
  int32_t number;
  DataType type;
  size_t size;
  const char* name;
};

const Element kElements[] = {
    {0, DataType::kBool, 1, "bool"},       {1, DataType::kInt16, 2, "int16"},
    {2, DataType::kInt32, 4, "int32"},     {3, DataType::kInt64, 8, "int64"},
    {4, DataType::kFloat16, 2, "float16"}, {5, DataType::kFloat32, 4, "float32"},
    {6, DataType::kFloat64, 8, "float64"}, {20, DataType::kUInt8, 1, "uint8"},
    {21, DataType::kInt8, 1, "int8"},
};

Attribute read_attribute(const FlatTable& table) {
  using Kind = Attribute::Kind;
  Attribute attribute;
  const int32_t type = table.scalar<int32_t>(kAttrType, 0);
  switch (type) {
    case kInt:
      attribute.kind = Kind::kInt;
      attribute.i = table.scalar<int32_t>(kAttrI, 0);
      break;
    case kLong:
      attribute.kind = Kind::kLong;
      attribute.i = table.scalar<int64_t>(kAttrL, 0);
      break;
    case kBoolean:
      attribute.kind = Kind::kBool;
      attribute.i = table.scalar<uint8_t>(kAttrB, 0) != 0;
      break;
    case kFloat:
      attribute.kind = Kind::kFloat;
      attribute.f = table.scalar<float>(kAttrF, 0);
      break;
    case kString:
      attribute.kind = Kind::kString;
      attribute.s = table.text(kAttrS);
      break;
    case kStrings:
      attribute.kind = Kind::kStrings;
      attribute.strings = table.texts(kAttrStrings);
      break;
    case kInts: {
      attribute.kind = Kind::kInts;
      const std::vector<int32_t> values = table.scalars<int32_t>(kAttrInts);
      attribute.ints.assign(values.begin(), values.end());
      break;
    }
    case kLongs:
      attribute.kind = Kind::kLongs;
      attribute.ints = table.scalars<int64_t>(kAttrLongs);
      break;
    case kFloats:
      attribute.kind = Kind::kFloats;
      attribute.floats = table.scalars<float>(kAttrFloats);
      break;
    // No op of a decoder needs these; they are checked and their values left aside.
    case kBooleans:
      table.scalars<uint8_t>(kAttrBools);
      break;
    case kBlockIndex:
      table.scalar<int32_t>(kAttrBlock, 0);
      break;
    case kBlockIndices:
      table.scalars<int32_t>(kAttrBlocks);
      break;
    default:
      table.fail("no type of attribute has the number " + std::to_string(type));
  }
  return attribute;
}

std::map<std::string, std::vector<std::string>> read_arguments(const FlatTable& op, int slot) {
  std::map<std::string, std::vector<std::string>> arguments;
  const std::string side = op.what() + (slot == kOpInputs ? " input" : " output");
  for (const FlatTable& table : op.tables(slot, side)) {
    arguments[table.required_text(kArgumentParameter)] = table.texts(kArgumentNames);
  }
  return arguments;
}

Op read_op(FlatTable table) {
  Op op;
  op.type = table.required_text(kOpType);
  table.rename(table.what() + " (" + op.type.substr(0, 64) + ")");
  for (const FlatTable& attribute : table.tables(kOpAttrs, table.what() + " attribute")) {
    op.attributes[attribute.required_text(kAttrName)] = read_attribute(attribute);
  }
  op.inputs = read_arguments(table, kOpInputs);
  op.outputs = read_arguments(table, kOpOutputs);
  return op;
}

void read_variable(const FlatTable& table, Program* program) {
  const std::string name = table.required_text(kVarName);
  const std::string what = "variable " + name.substr(0, 64);
  const FlatTable kind_table = table.required_table(kVarType, what);
  const int32_t kind = kind_table.scalar<int32_t>(kVarTypeType, 0);
  if (kind < 0 || kind > kVarLast || kind == kVarUnused) {
    kind_table.fail("no type of variable has the number " + std::to_string(kind));
  }
  const bool persistable = table.scalar<uint8_t>(kVarPersistable, 0) != 0;
  FlatTable lod_tensor;
  Variable variable;
  if (kind_table.table(kVarTypeLoDTensor, what, &lod_tensor) && kind == kVarLoDTensor) {
    const FlatTable tensor = lod_tensor.required_table(kLoDTensorTensor, what);
    variable.has_tensor = true;
    variable.type = read_element_type(tensor.scalar<int32_t>(kTensorDescDataType, 0), tensor);
    variable.shape = tensor.scalars<int64_t>(kTensorDescDims);
  }
  if (persistable && kind == kVarLoDTensor) program->parameters.push_back(name);
  program->variables[name] = std::move(variable);
}

}  // namespace

size_t element_size(DataType type) {
  for (const Element& element : kElements) {
    if (element.type == type) return element.size;
  }
  return 0;
}

const char* type_name(DataType type) {
  for (const Element& element : kElements) {
    if (element.type == type) return element.name;
  }
  return "other";
}

DataType read_element_type(int32_t number, const FlatTable& table) {
  for (const Element& element : kElements) {
    if (element.number == number) return element.type;
  }
  table.fail("no element type has the number " + std::to_string(number));
}

Program read_program(FlatBuffer& buffer, const std::string& label) {
  const FlatTable root = FlatTable::root(buffer, "the program");
  const std::vector<FlatTable> blocks = root.tables(kProgramBlocks, "block");
  if (blocks.empty()) root.fail("it has no block");
  if (blocks.size() > 1) {
    throw Error(EK_ERR_FORMAT,
                label + ": the program has " + std::to_string(blocks.size()) +
                    " blocks; this kit reads programs of one block (no while or conditional ops)");
  }
  Program program;
  FlatTable version;  // its number is of no use here, but a damaged table makes a damaged file
  if (root.table(kProgramVersion, "the program's version", &version)) {
    version.scalar<int64_t>(kVersionNumber, 0);
  }
  for (const FlatTable& table : blocks[0].tables(kBlockOps, "op")) program.ops.push_back(read_op(table));
  for (const FlatTable& table : blocks[0].tables(kBlockVars, "variable")) read_variable(table, &program);
  return program;
}

}  // namespace edge_kit
