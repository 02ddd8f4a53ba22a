// Which paths this CPU can run. On x86-64 the operating system must save the wide registers too, so XCR0 is
// asked besides CPUID; on ARM the operating system alone is asked.
#include <cstdlib>
#include <cstring>

#include "paths.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace edge_kit {
namespace {

struct Paths {
  Kernels tables[5];  // best first
  const char* names[6] = {};
  int count = 0;

  void append(const Kernels& kernels) {
    tables[count] = kernels;
    names[count++] = kernels.name;
  }

  // A path that differs from `base` in its INT8 linear layers alone.
  void append(const char* name, const Kernels& base, decltype(Kernels::linear_int8) linear_int8) {
    Kernels kernels = base;
    kernels.name = name;
    kernels.linear_int8 = linear_int8;
    append(kernels);
  }
};

#if defined(__x86_64__)
constexpr bool bit(unsigned word, int index) { return (word >> index & 1) != 0; }

uint64_t saved_registers() {
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

// Asks Linux to save the tile registers; without its consent the first use of one ends the process.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return (saved_registers() & 0x60000) == 0x60000 && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

void append_x86(Paths* paths) {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return;
  const bool fma = bit(c, 12), osxsave = bit(c, 27), avx = bit(c, 28), f16c = bit(c, 29);
  if (!fma || !osxsave || !avx || !f16c) return;
  const uint64_t xcr0 = saved_registers();
  if ((xcr0 & 0x06) != 0x06) return;  // xmm and ymm
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !bit(b, 5)) return;  // avx2
  const unsigned subleaves = a;
  const bool amx_int8 = bit(d, 24) && bit(d, 25);
  const bool avx512 = bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);  // f, dq, bw, vl
  const bool avx512_vnni = avx512 && bit(c, 11) && (xcr0 & 0xe0) == 0xe0;    // opmask and zmm too
  const bool avx_vnni = subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && bit(a, 4);
  if (avx512_vnni && amx_int8 && may_use_tiles()) {
    paths->append("amx-int8", kAvx512VnniKernels, linear_int8_amx);
  }
  if (avx512_vnni) paths->append(kAvx512VnniKernels);
  if (avx_vnni) paths->append("avx-vnni", kAvx2Kernels, linear_int8_avx_vnni);
  paths->append(kAvx2Kernels);
}
#elif defined(__aarch64__)
struct ArmFeatures {
  bool dotprod = false, i8mm = false;
};

#if defined(__APPLE__)
bool has_feature(const char* name) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}
#endif

ArmFeatures arm_features() {
  ArmFeatures features;
#if defined(__linux__)
  constexpr unsigned long kDotprod = 1ul << 20, kI8mm = 1ul << 13;  // HWCAP_ASIMDDP, HWCAP2_I8MM
  features.dotprod = (getauxval(AT_HWCAP) & kDotprod) != 0;
  features.i8mm = (getauxval(AT_HWCAP2) & kI8mm) != 0;
#elif defined(__APPLE__)
  features.dotprod = has_feature("hw.optional.arm.FEAT_DotProd");
  features.i8mm = has_feature("hw.optional.arm.FEAT_I8MM");
#endif
  return features;
}

void append_arm(Paths* paths) {
  const ArmFeatures features = arm_features();
  // The few rows of neon-i8mm are multiplied by dot products.
  if (features.dotprod && features.i8mm) paths->append("neon-i8mm", kNeonKernels, linear_int8_neon_i8mm);
  if (features.dotprod) paths->append("neon-dotprod", kNeonKernels, linear_int8_neon_dotprod);
  paths->append(kNeonKernels);
}
#endif

Paths find_paths() {
  Paths paths;
#if defined(__x86_64__)
  append_x86(&paths);
#elif defined(__aarch64__)
  append_arm(&paths);
#endif
  paths.append(kScalarKernels);
  return paths;
}

const Paths& paths() {
  static const Paths found = find_paths();
  return found;
}

}  // namespace

const Kernels* find_kernels(const char* name) {
  for (int i = 0; i < paths().count; ++i) {
    if (std::strcmp(name, paths().names[i]) == 0) return &paths().tables[i];
  }
  return nullptr;
}

const Kernels* best_kernels() {
  const char* wanted = std::getenv("EDGE_KIT_ISA");
  const Kernels* named = wanted ? find_kernels(wanted) : nullptr;
  return named ? named : &paths().tables[0];
}

const char* const* available_kernels() { return paths().names; }

}  // namespace edge_kit
