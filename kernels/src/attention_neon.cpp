// Attention on ARM: eight lanes in two registers.
#include <arm_neon.h>

#include "attend.h"

namespace selfspec {
namespace {

struct LanesNeon {
  static constexpr std::size_t kLanes = 8;
  static constexpr int kRows = 6;
  static constexpr int vectors(int rows) { return rows <= 2 ? 4 : 2; }
  struct Floats {
    float32x4_t first, second;
  };

  static Floats load(const float* x) { return {vld1q_f32(x), vld1q_f32(x + 4)}; }
  static void store(float* x, Floats value) {
    vst1q_f32(x, value.first);
    vst1q_f32(x + 4, value.second);
  }
  static Floats repeat(float value) { return {vdupq_n_f32(value), vdupq_n_f32(value)}; }
  static Floats fma(Floats a, Floats b, Floats c) {
    return {vfmaq_f32(c.first, a.first, b.first), vfmaq_f32(c.second, a.second, b.second)};
  }
  static Floats add(Floats a, Floats b) { return {vaddq_f32(a.first, b.first), vaddq_f32(a.second, b.second)}; }
  static float32x4_t larger(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static Floats max(Floats a, Floats b) {  // b where either is NaN
    return {larger(a.first, b.first), larger(a.second, b.second)};
  }
  static void transpose_four(const float* const* rows, std::size_t d, float32x4_t (&out)[4]) {
    const float32x4x2_t a = vtrnq_f32(vld1q_f32(rows[0] + d), vld1q_f32(rows[1] + d));
    const float32x4x2_t b = vtrnq_f32(vld1q_f32(rows[2] + d), vld1q_f32(rows[3] + d));
    out[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
    out[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
    out[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
    out[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
  }
  static void transpose(const float* const* rows, std::size_t d, Floats (&out)[4]) {
    float32x4_t first[4], second[4];
    transpose_four(rows, d, first);
    transpose_four(rows + 4, d, second);
    for (int i = 0; i < 4; ++i) out[i] = {first[i], second[i]};
  }
};

}  // namespace

const AttentionPath kAttentionNeon = attention_path<LanesNeon>();

}  // namespace selfspec
