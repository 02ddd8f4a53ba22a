// Memory that is not touched before use, and how much of it the machine has left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>

namespace edge_kit {

struct AlignedDelete {
  void operator()(void* data) const { ::operator delete(data, std::align_val_t{64}); }
};

template <typename T>
using AlignedArray = std::unique_ptr<T[], AlignedDelete>;

// 64-byte aligned and uninitialized: a page becomes resident when it is first written.
template <typename T>
AlignedArray<T> make_aligned(int64_t count) {
  const size_t bytes = static_cast<size_t>(count > 0 ? count : 1) * sizeof(T);
  return AlignedArray<T>(static_cast<T*>(::operator new(bytes, std::align_val_t{64})));
}

// Bytes that can still be allocated without swapping, under the limit of the process's cgroup; -1 if unknown.
int64_t available_memory();

// Throws EK_ERR_OUT_OF_MEMORY with both figures when `bytes` are not available for `what`.
void require_memory(int64_t bytes, const std::string& what);

std::string format_bytes(int64_t bytes);  // "1.25 GB", "640.00 KB"

}  // namespace edge_kit
