// Independent sums hide the latency of the multiplication; operands stay in registers, so neither memory nor
// cache takes part. In assembly, since compilers move arrays of sums to the stack. The scalar path's loop is
// a dot product over L1, as fast as the compiler makes it.
#include "kernels/peak.h"

#include <cstring>

namespace edge_kit {
namespace {

constexpr int64_t kDotBytes = 4096;

void multiply_scalar(int64_t steps) {
  int8_t a[kDotBytes], b[kDotBytes];
  std::memset(a, 3, sizeof a);
  std::memset(b, 5, sizeof b);
  for (int64_t step = 0; step < steps; ++step) {
    __asm__ volatile("" : : "r"(a), "r"(b) : "memory");  // whatever they hold now
    int32_t sum = 0;
    for (int64_t i = 0; i < kDotBytes; ++i) sum += static_cast<int32_t>(a[i]) * b[i];
    __asm__ volatile("" : : "r"(sum));
  }
}

#if defined(__x86_64__) || defined(__aarch64__)
constexpr int64_t kSums = 12;  // registers 1 to 12; 0 is what is multiplied, 13 holds a product

#define EDGE_KIT_EACH_SUM(DO) \
  DO("1") DO("2") DO("3") DO("4") DO("5") DO("6") DO("7") DO("8") DO("9") DO("10") DO("11") DO("12")
#endif

#if defined(__x86_64__)
#define EDGE_KIT_CLOBBERED                                                                              \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", \
      "xmm13"

#define EDGE_KIT_AVX2(SUM)                      \
  "vpmaddubsw %%ymm0, %%ymm0, %%ymm13\n\t"      \
  "vpmaddwd %%ymm0, %%ymm13, %%ymm13\n\t"       \
  "vpaddd %%ymm13, %%ymm" SUM ", %%ymm" SUM "\n\t"
#define EDGE_KIT_AVX_VNNI(SUM) "%{vex%} vpdpbusd %%ymm0, %%ymm0, %%ymm" SUM "\n\t"
#define EDGE_KIT_AVX512_VNNI(SUM) "vpdpbusd %%zmm0, %%zmm0, %%zmm" SUM "\n\t"

void multiply_avx2(int64_t steps) {
  for (int64_t step = 0; step < steps; ++step) {
    __asm__ volatile(EDGE_KIT_EACH_SUM(EDGE_KIT_AVX2) : : : EDGE_KIT_CLOBBERED);
  }
  __asm__ volatile("vzeroupper" : : : EDGE_KIT_CLOBBERED);
}

void multiply_avx_vnni(int64_t steps) {
  for (int64_t step = 0; step < steps; ++step) {
    __asm__ volatile(EDGE_KIT_EACH_SUM(EDGE_KIT_AVX_VNNI) : : : EDGE_KIT_CLOBBERED);
  }
  __asm__ volatile("vzeroupper" : : : EDGE_KIT_CLOBBERED);
}

void multiply_avx512_vnni(int64_t steps) {
  for (int64_t step = 0; step < steps; ++step) {
    __asm__ volatile(EDGE_KIT_EACH_SUM(EDGE_KIT_AVX512_VNNI) : : : EDGE_KIT_CLOBBERED);
  }
  __asm__ volatile("vzeroupper" : : : EDGE_KIT_CLOBBERED);
}

// Six sums of 16 by 16 in tile registers 0 to 5; each multiplication adds 64 products to every one of them.
constexpr int64_t kTileSums = 6, kTileOperations = 16 * 16 * 64;

void multiply_amx(int64_t steps) {
  struct alignas(64) {  // operand of ldtilecfg: all eight registers with 16 rows of 64 bytes
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  __asm__ volatile("ldtilecfg %0" : : "m"(config));
  for (int64_t step = 0; step < steps; ++step) {
    __asm__ volatile(
        "tdpbssd %tmm7, %tmm6, %tmm0\n\t"
        "tdpbssd %tmm7, %tmm6, %tmm1\n\t"
        "tdpbssd %tmm7, %tmm6, %tmm2\n\t"
        "tdpbssd %tmm7, %tmm6, %tmm3\n\t"
        "tdpbssd %tmm7, %tmm6, %tmm4\n\t"
        "tdpbssd %tmm7, %tmm6, %tmm5");
  }
  __asm__ volatile("tilerelease");
}
#elif defined(__aarch64__)
#define EDGE_KIT_CLOBBERED \
  "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13"

#define EDGE_KIT_NEON(SUM)                  \
  "smull v13.8h, v0.8b, v0.8b\n\t"          \
  "smlal2 v13.8h, v0.16b, v0.16b\n\t"       \
  "sadalp v" SUM ".4s, v13.8h\n\t"
#define EDGE_KIT_NEON_DOTPROD(SUM) "sdot v" SUM ".4s, v0.16b, v0.16b\n\t"
#define EDGE_KIT_NEON_I8MM(SUM) "smmla v" SUM ".4s, v0.16b, v0.16b\n\t"

void multiply_neon(int64_t steps) {
  for (int64_t step = 0; step < steps; ++step) {
    __asm__ volatile(EDGE_KIT_EACH_SUM(EDGE_KIT_NEON) : : : EDGE_KIT_CLOBBERED);
  }
}

// This file is compiled for every CPU, so the assembler has to be told.
void multiply_neon_dotprod(int64_t steps) {
  for (int64_t step = 0; step < steps; ++step) {
    __asm__ volatile(".arch armv8.2-a+dotprod\n\t" EDGE_KIT_EACH_SUM(EDGE_KIT_NEON_DOTPROD)
                     : : : EDGE_KIT_CLOBBERED);
  }
}

void multiply_neon_i8mm(int64_t steps) {
  for (int64_t step = 0; step < steps; ++step) {
    __asm__ volatile(".arch armv8.2-a+i8mm\n\t" EDGE_KIT_EACH_SUM(EDGE_KIT_NEON_I8MM)
                     : : : EDGE_KIT_CLOBBERED);
  }
}
#endif

constexpr MultiplyLoop kLoops[] = {
    {"scalar", kDotBytes, multiply_scalar},
#if defined(__x86_64__)
    {"avx2", kSums * 32, multiply_avx2},
    {"avx-vnni", kSums * 32, multiply_avx_vnni},
    {"avx512-vnni", kSums * 64, multiply_avx512_vnni},
    {"amx-int8", kTileSums * kTileOperations, multiply_amx},
#elif defined(__aarch64__)
    {"neon", kSums * 16, multiply_neon},
    {"neon-dotprod", kSums * 16, multiply_neon_dotprod},
    {"neon-i8mm", kSums * 32, multiply_neon_i8mm},
#endif
};

}  // namespace

const MultiplyLoop* find_multiply_loop(const char* isa) {
  for (const MultiplyLoop& loop : kLoops) {
    if (std::strcmp(loop.isa, isa) == 0) return &loop;
  }
  return nullptr;
}

}  // namespace edge_kit
