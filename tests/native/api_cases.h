// What the tests of the C API share.
#pragma once

#include <cstdio>
#include <string>

#include "edge_kit.h"

namespace edge_kit_test {

// Whether a call failed as expected, with a message that has this part.
inline bool says(ek_status status, ek_status expected, const std::string& part) {
  const bool ok = status == expected && std::string(ek_last_error()).find(part) != std::string::npos;
  if (!ok) std::printf("  got status %d, \"%s\"\n", status, ek_last_error());
  return ok;
}

}  // namespace edge_kit_test
