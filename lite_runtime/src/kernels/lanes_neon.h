// Sixteen fp32 lanes in four NEON registers; the same operations as lanes_avx2.h.
#pragma once

#include <arm_neon.h>

#include "isa_common.h"

namespace edge_kit {
namespace {

struct Lanes {
  static constexpr int kCount = 16;
  // Lanes per register block of the attention product, for a number of queries: six by one are 24 of the 32
  // registers.
  static constexpr int block(int queries, bool) { return queries <= 2 ? 2 : 1; }

  float32x4_t a, b, c, d;

  static Lanes set1(float x) {
    const float32x4_t four = vdupq_n_f32(x);
    return {four, four, four, four};
  }
  static Lanes load(const float* p) {
    return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
  }
  static Lanes load(const uint16_t* p) {
    const float16x8_t low = vreinterpretq_f16_u16(vld1q_u16(p));
    const float16x8_t high = vreinterpretq_f16_u16(vld1q_u16(p + 8));
    return {vcvt_f32_f16(vget_low_f16(low)), vcvt_high_f32_f16(low), vcvt_f32_f16(vget_low_f16(high)),
            vcvt_high_f32_f16(high)};
  }
  static Lanes load(const int8_t* p) { return from_bytes(vld1q_s8(p)); }
  // The four inputs [16, 4] of one weight quad, each with its 16 outputs.
  static void load_quad(const int8_t* p, Lanes* inputs) {
    const int8x16x4_t quad = vld4q_s8(p);
    EDGE_KIT_UNROLL for (int i = 0; i < 4; ++i) inputs[i] = from_bytes(quad.val[i]);
  }
  void store(float* p) const {
    vst1q_f32(p, a);
    vst1q_f32(p + 4, b);
    vst1q_f32(p + 8, c);
    vst1q_f32(p + 12, d);
  }
  void store(uint16_t* p) const {
    vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(a), b)));
    vst1q_u16(p + 8, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(c), d)));
  }
  // [sum of lanes i and i + 8], then 4, 2, 1.
  float sum() const {
    const float32x4_t four = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
  }
  float max() const { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a, c), vmaxq_f32(b, d))); }

 private:
  static Lanes from_bytes(int8x16_t x) {
    const int16x8_t low = vmovl_s8(vget_low_s8(x)), high = vmovl_high_s8(x);
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))};
  }
};

Lanes operator+(Lanes x, Lanes y) {
  return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b), vaddq_f32(x.c, y.c), vaddq_f32(x.d, y.d)};
}
Lanes operator-(Lanes x, Lanes y) {
  return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b), vsubq_f32(x.c, y.c), vsubq_f32(x.d, y.d)};
}
Lanes operator*(Lanes x, Lanes y) {
  return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b), vmulq_f32(x.c, y.c), vmulq_f32(x.d, y.d)};
}
Lanes operator/(Lanes x, Lanes y) {
  return {vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b), vdivq_f32(x.c, y.c), vdivq_f32(x.d, y.d)};
}
// x * y + z
Lanes fma(Lanes x, Lanes y, Lanes z) {
  return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c),
          vfmaq_f32(z.d, x.d, y.d)};
}
// A NaN passes.
Lanes min(Lanes x, Lanes y) {
  return {vminq_f32(x.a, y.a), vminq_f32(x.b, y.b), vminq_f32(x.c, y.c), vminq_f32(x.d, y.d)};
}
Lanes max(Lanes x, Lanes y) {
  return {vmaxq_f32(x.a, y.a), vmaxq_f32(x.b, y.b), vmaxq_f32(x.c, y.c), vmaxq_f32(x.d, y.d)};
}
Lanes round(Lanes x) { return {vrndnq_f32(x.a), vrndnq_f32(x.b), vrndnq_f32(x.c), vrndnq_f32(x.d)}; }

float32x4_t exp2_whole(float32x4_t n) {
  return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
}
// 2^n for whole n in [-127, 128]; 0 and infinity at the ends.
Lanes exp2_whole(Lanes n) { return {exp2_whole(n.a), exp2_whole(n.b), exp2_whole(n.c), exp2_whole(n.d)}; }

// Running sum of 64-bit words, 64 bytes at a time.
struct Words {
  uint64x2_t low = vdupq_n_u64(0), high = vdupq_n_u64(0);
  void add(const uint8_t* p) {
    low = vaddq_u64(low, vaddq_u64(word_pair(p), word_pair(p + 16)));
    high = vaddq_u64(high, vaddq_u64(word_pair(p + 32), word_pair(p + 48)));
  }
  uint64_t total() const { return vaddvq_u64(vaddq_u64(low, high)); }

 private:
  static uint64x2_t word_pair(const uint8_t* p) { return vreinterpretq_u64_u8(vld1q_u8(p)); }
};

}  // namespace
}  // namespace edge_kit
