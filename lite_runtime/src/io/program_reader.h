// The ProgramDesc of a `.nb` file as plain structs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "io/flat_reader.h"
#include "io/nb_file.h"

namespace edge_kit {

struct Variable {
  bool has_tensor = false;  // type and shape are declared
  DataType type = DataType::kOther;
  std::vector<int64_t> shape;  // -1 = dynamic
};

struct Program {
  std::vector<Op> ops;  // block 0
  std::map<std::string, Variable> variables;
  std::vector<std::string> parameters;  // persistable tensors, which the file must hold
};

Program read_program(FlatBuffer& buffer, const std::string& label);

// The element type that a number of the schema stands for; fails on `table` if it is none.
DataType read_element_type(int32_t number, const FlatTable& table);

}  // namespace edge_kit
