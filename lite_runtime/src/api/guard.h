// Turns what the core throws into a status and the calling thread's message.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "io/status.h"

namespace edge_kit {

// Stores the message in a fixed buffer: reporting an error must not need memory.
ek_status fail(ek_status status, const char* message) noexcept;

template <typename Function>
ek_status guarded(const Function& function) noexcept {
  try {
    function();
    return EK_OK;
  } catch (const Error& error) {
    return fail(error.status(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(EK_ERR_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return fail(EK_ERR_INTERNAL, error.what());
  } catch (...) {
    return fail(EK_ERR_INTERNAL, "unknown exception");
  }
}

inline void require(bool condition, const std::string& message) {
  if (!condition) throw Error(EK_ERR_INVALID_ARGUMENT, message);
}

}  // namespace edge_kit
