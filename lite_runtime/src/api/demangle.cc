// Stands in for libc++abi's demangler, a large part of a library that links libc++ in. Only the text of an
// uncaught exception asks for it, and none leaves the C API; a name that is not demangled is printed as it is.
#include <cstddef>

#if defined(_LIBCPP_VERSION)

extern "C" char* __cxa_demangle(const char* name, char* buffer, std::size_t* length, int* status);

extern "C" char* __cxa_demangle(const char*, char*, std::size_t*, int* status) {
  if (status != nullptr) *status = -2;  // "no valid name", in the terms of the Itanium C++ ABI
  return nullptr;
}

#endif
