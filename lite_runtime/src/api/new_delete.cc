// On macOS the library brings its own operators new and delete. Those of a libc++ that is linked in are
// visible to other programs whatever the build asks for, and zig's linker knows no export list; these are
// hidden by -fvisibility-global-new-delete (lite_runtime/build.py).
#if defined(__APPLE__)

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

void* allocate(std::size_t size, std::size_t alignment) noexcept {
  const std::size_t bytes = size > 0 ? size : 1;
  if (alignment <= alignof(std::max_align_t)) return std::malloc(bytes);
  void* memory = nullptr;
  return posix_memalign(&memory, alignment, bytes) == 0 ? memory : nullptr;
}

void* allocate_or_throw(std::size_t size, std::size_t alignment = 1) {
  if (void* memory = allocate(size, alignment)) return memory;
  throw std::bad_alloc();
}

std::size_t number(std::align_val_t alignment) { return static_cast<std::size_t>(alignment); }

}  // namespace

using std::align_val_t;
using std::nothrow_t;
using std::size_t;

void* operator new(size_t size) { return allocate_or_throw(size); }
void* operator new[](size_t size) { return allocate_or_throw(size); }
void* operator new(size_t size, align_val_t a) { return allocate_or_throw(size, number(a)); }
void* operator new[](size_t size, align_val_t a) { return allocate_or_throw(size, number(a)); }
void* operator new(size_t size, const nothrow_t&) noexcept { return allocate(size, 1); }
void* operator new[](size_t size, const nothrow_t&) noexcept { return allocate(size, 1); }
void* operator new(size_t size, align_val_t a, const nothrow_t&) noexcept { return allocate(size, number(a)); }
void* operator new[](size_t size, align_val_t a, const nothrow_t&) noexcept {
  return allocate(size, number(a));
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, const nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, align_val_t, const nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, align_val_t, const nothrow_t&) noexcept { std::free(memory); }

#endif
