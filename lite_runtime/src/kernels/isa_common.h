// Shared by the ISA files. All that they include is in an unnamed namespace and they use no std templates: a
// function that the linker could merge with another file's would carry this file's instructions there.
#pragma once

#include <cstddef>
#include <cstdint>

// Register blocks are arrays; they live in registers only when their loops are unrolled.
#if defined(__clang__)
#define EDGE_KIT_UNROLL _Pragma("clang loop unroll(full)")
#else
#define EDGE_KIT_UNROLL _Pragma("GCC unroll 16")
#endif

// A part of a loop that must see the loop's registers.
#define EDGE_KIT_INLINE __attribute__((always_inline)) inline

namespace edge_kit {
namespace {

constexpr int64_t kPrefetchBytes = 1024;  // how far ahead of a stream from memory to prefetch

inline void prefetch(const void* p) { __builtin_prefetch(p); }
inline void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }  // not into the nearest cache

constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

}  // namespace
}  // namespace edge_kit
