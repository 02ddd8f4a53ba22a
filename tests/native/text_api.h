// The text calls of the C API on a file made in memory.
#pragma once

#include <memory>
#include <string>

#include "api/handles.h"
#include "api_cases.h"
#include "text_builder.h"
#include "toy_model.h"

namespace edge_kit_test {

// A small model with these bytes behind its tensors. The caller closes it.
inline ek_model* open_with(const std::string& file) {
  static const ToyModel toy;
  ModelOptions options;
  options.n_threads = 1;
  return new ek_model{std::make_shared<Model>(std::make_unique<BytesFile>(file), toy.plan(), options)};
}

}  // namespace edge_kit_test
