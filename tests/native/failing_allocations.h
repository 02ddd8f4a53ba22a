// Aligned allocations that fail when a test says so. For one file of a program.
#pragma once

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int> blocks_left{-1};  // aligned allocations that still succeed; below 0: all

}  // namespace

void* operator new(size_t size, std::align_val_t alignment) {
  void* memory = nullptr;
  if (blocks_left.load() == 0 || posix_memalign(&memory, static_cast<size_t>(alignment), size) != 0) {
    throw std::bad_alloc();
  }
  if (blocks_left.load() > 0) --blocks_left;
  return memory;
}
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
