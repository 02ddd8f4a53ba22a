#include "engine/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <new>

#include "engine/system_files.h"
#include "io/status.h"

#if defined(__APPLE__)
#include <mach/mach.h>
#include <unistd.h>
#endif

namespace edge_kit {
namespace {

constexpr size_t kMapped = size_t{1} << 20;  // bytes from which on an array is mapped
constexpr std::align_val_t kAlignment{64};

#if defined(__linux__)
// The tightest limit on the way from the process's own cgroup (v2) to the root; -1 without one.
int64_t cgroup_memory_left() {
  int64_t left = -1;
  for (const std::string& folder : cgroup_folders()) {
    const int64_t limit = read_number(folder + "/memory.max", -1);
    const int64_t used = read_number(folder + "/memory.current", -1);
    if (limit < 0 || used < 0) continue;
    // Clean pages of files, such as the model's, count as used but are given back on demand.
    const int64_t reclaimable =
        std::max<int64_t>(0, read_field(folder + "/memory.stat", "inactive_file", 0)) +
        std::max<int64_t>(0, read_field(folder + "/memory.stat", "active_file", 0));
    const int64_t here = std::max<int64_t>(0, limit - used + std::min(used, reclaimable));
    left = left < 0 ? here : std::min(left, here);
  }
  return left;
}
#endif

}  // namespace

void* allocate_aligned(size_t bytes) {
  if (bytes < kMapped) return ::operator new(bytes, kAlignment);
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  return mapped;
}

void free_aligned(void* data, size_t bytes) {
  if (bytes < kMapped) {
    ::operator delete(data, kAlignment);
  } else {
    munmap(data, bytes);
  }
}

int64_t available_memory() {
#if defined(__linux__)
  const int64_t kib = read_field("/proc/meminfo", "MemAvailable:", -1);
  const int64_t system = kib < 0 ? -1 : kib * 1024, cgroup = cgroup_memory_left();
  if (system < 0 || cgroup < 0) return std::max(system, cgroup);
  return std::min(system, cgroup);
#elif defined(__APPLE__)
  vm_statistics64_data_t stats;
  mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
  if (host_statistics64(mach_host_self(), HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&stats), &count) !=
      KERN_SUCCESS) {
    return -1;
  }
  const int64_t pages = static_cast<int64_t>(stats.free_count) + stats.inactive_count + stats.purgeable_count;
  return pages * static_cast<int64_t>(getpagesize());
#else
  return -1;
#endif
}

void require_memory(int64_t bytes, const std::string& what) {
  const int64_t available = available_memory();
  if (available < 0 || bytes <= available) return;
  throw Error(EK_ERR_OUT_OF_MEMORY, what + " needs " + format_bytes(bytes) + " of memory, but only " +
                                        format_bytes(available) +
                                        " are available: free some, or use a smaller model or context");
}

std::string format_bytes(int64_t bytes) {
  const char* units[] = {"bytes", "KB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1000.0 && unit < 4) {
    value /= 1000.0;
    ++unit;
  }
  char text[48];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
  return text;
}

}  // namespace edge_kit
