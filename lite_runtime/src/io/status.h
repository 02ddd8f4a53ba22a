// Errors inside the core are exceptions of this one type; the C ABI turns them into status codes.
#pragma once

#include <stdexcept>
#include <string>

#include "edge_kit.h"

namespace edge_kit {

class Error : public std::runtime_error {
 public:
  Error(ek_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  ek_status status() const { return status_; }

 private:
  ek_status status_;
};

}  // namespace edge_kit
