// The text calls of the C API on a file made in memory.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "api/handles.h"
#include "edge_kit.h"
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

// Whether a call failed as expected, with a message that has this part.
inline bool says(ek_status status, ek_status expected, const std::string& part) {
  const bool ok = status == expected && std::string(ek_last_error()).find(part) != std::string::npos;
  if (!ok) std::printf("  got status %d, \"%s\"\n", status, ek_last_error());
  return ok;
}

}  // namespace edge_kit_test
