#include "engine/cpu.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/system_files.h"
#include "io/status.h"

#if defined(__linux__)
#include <sched.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace edge_kit {
namespace {

#if defined(__linux__)
std::vector<int> usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

std::string cpu_folder(int cpu) { return "/sys/devices/system/cpu/cpu" + std::to_string(cpu); }

// Keeps the performance cores: those Intel lists as such, or those within half of the largest ARM capacity.
std::vector<int> fastest(const std::vector<int>& cpus) {
  const std::vector<int> big = parse_cpu_list(read_line("/sys/devices/cpu_core/cpus"));
  int64_t largest = 0;
  for (int cpu : cpus) largest = std::max(largest, read_number(cpu_folder(cpu) + "/cpu_capacity", 0));
  std::vector<int> kept;
  for (int cpu : cpus) {
    const bool slow_capacity = read_number(cpu_folder(cpu) + "/cpu_capacity", largest) * 2 < largest;
    const bool small_core = !big.empty() && std::find(big.begin(), big.end(), cpu) == big.end();
    if (!slow_capacity && !small_core) kept.push_back(cpu);
  }
  return kept.empty() ? cpus : kept;
}

int physical_cores(const std::vector<int>& cpus) {
  std::set<std::string> cores;  // each named by the list of its hardware threads
  for (int cpu : cpus) {
    const std::string siblings = read_line(cpu_folder(cpu) + "/topology/thread_siblings_list");
    cores.insert(siblings.empty() ? std::to_string(cpu) : siblings);
  }
  return static_cast<int>(cores.size());
}

// CPUs' worth of time that the cgroups (v2, or v1 as containers mount it) leave to the process; 0 = no limit.
int cpu_quota() {
  int64_t limit = 0;
  const auto apply = [&limit](int64_t quota, int64_t period) {
    if (quota <= 0 || period <= 0) return;
    const int64_t cpus = std::max<int64_t>(1, quota / period);
    limit = limit == 0 ? cpus : std::min(limit, cpus);
  };
  for (const std::string& folder : cgroup_folders()) {
    const std::string line = read_line(folder + "/cpu.max");  // "200000 100000" or "max 100000"
    const size_t space = line.find(' ');
    if (space != std::string::npos && line[0] != 'm') {
      apply(std::strtoll(line.c_str(), nullptr, 10), std::strtoll(line.c_str() + space, nullptr, 10));
    }
  }
  apply(read_number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", 0),
        read_number("/sys/fs/cgroup/cpu/cpu.cfs_period_us", 0));
  return static_cast<int>(limit);
}
#endif

}  // namespace

int default_threads() {
  int count = 0;
#if defined(__linux__)
  count = physical_cores(fastest(usable_cpus()));
  const int quota = cpu_quota();
  if (quota > 0) count = std::min(count, quota);
#elif defined(__APPLE__)
  size_t size = sizeof count;
  if (sysctlbyname("hw.perflevel0.physicalcpu", &count, &size, nullptr, 0) != 0) {
    size = sizeof count;
    if (sysctlbyname("hw.physicalcpu", &count, &size, nullptr, 0) != 0) count = 0;
  }
#endif
  if (count < 1) count = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, std::min(count, kMaxThreads));
}

int resolve_threads(int wanted) {
  if (wanted == 0) return default_threads();
  if (wanted >= 1 && wanted <= kMaxThreads) return wanted;
  throw Error(EK_ERR_INVALID_ARGUMENT, "n_threads is " + std::to_string(wanted) + "; give 1 to " +
                                           std::to_string(kMaxThreads) + ", or 0 for the default of this machine");
}

}  // namespace edge_kit
