// Memory that is not touched before use, and how much of it the machine has left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace edge_kit {

// 64-byte aligned and uninitialized: a page becomes resident when it is first written. From a megabyte on it
// is the system's own pages, which go back at once: allocated and freed by the megabyte, memory would leave
// the allocator's heaps in pieces. Throws std::bad_alloc.
void* allocate_aligned(size_t bytes);
void free_aligned(void* data, size_t bytes);

struct AlignedDelete {
  size_t bytes = 0;
  void operator()(void* data) const { free_aligned(data, bytes); }
};

template <typename T>
using AlignedArray = std::unique_ptr<T[], AlignedDelete>;

template <typename T>
AlignedArray<T> make_aligned(int64_t count) {
  const size_t bytes = static_cast<size_t>(count > 0 ? count : 1) * sizeof(T);
  return AlignedArray<T>(static_cast<T*>(allocate_aligned(bytes)), AlignedDelete{bytes});
}

// Bytes that can still be allocated without swapping, under the limit of the process's cgroup; -1 if unknown.
int64_t available_memory();

// Throws EK_ERR_OUT_OF_MEMORY with both figures when `bytes` are not available for `what`.
void require_memory(int64_t bytes, const std::string& what);

std::string format_bytes(int64_t bytes);  // "1.25 GB", "640.00 KB"

}  // namespace edge_kit
