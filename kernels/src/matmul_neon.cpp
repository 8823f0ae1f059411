// ARMv8.2 with dot product: sdot, signed by signed. Nibbles are small enough to be either; a whole byte is shifted to
// signed by flipping its top bit, and 128 times the activations' sum is given back, exactly, in integers.
#include <arm_neon.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif

#include "inner_products.h"
#include "product.h"

namespace selfspec {
namespace {

struct Neon {
  static constexpr std::size_t kTiles = 1;
  static constexpr int kRows4 = 4, kRows8 = 4;
  struct Bytes {
    uint8x16_t first, second;
  };
  struct Signed {
    int8x16_t first, second;
  };
  struct Dot4 {
    int32x4_t first, second;
  };
  struct Dot8 {
    int32x4_t first, second, offset;
  };
  struct Floats {
    float32x4_t first, second;
  };

  static Bytes load(const std::uint8_t* bytes, std::size_t) { return {vld1q_u8(bytes), vld1q_u8(bytes + 16)}; }
  static Bytes low(Bytes b) { return {vandq_u8(b.first, vdupq_n_u8(15)), vandq_u8(b.second, vdupq_n_u8(15))}; }
  static Bytes high(Bytes b) { return {vshrq_n_u8(b.first, 4), vshrq_n_u8(b.second, 4)}; }
  static Signed whole(Bytes b) {
    const uint8x16_t top = vdupq_n_u8(128);
    return {vreinterpretq_s8_u8(veorq_u8(b.first, top)), vreinterpretq_s8_u8(veorq_u8(b.second, top))};
  }
  static int8x16_t four(const std::int8_t* a) {
    std::int32_t word;
    std::memcpy(&word, a, sizeof word);
    return vreinterpretq_s8_s32(vdupq_n_s32(word));
  }
  static void add(Dot4& dot, Bytes w, const std::int8_t* a) {
    dot.first = vdotq_s32(dot.first, vreinterpretq_s8_u8(w.first), four(a));
    dot.second = vdotq_s32(dot.second, vreinterpretq_s8_u8(w.second), four(a));
  }
  static void add(Dot8& dot, Signed w, const std::int8_t* a) {
    dot.first = vdotq_s32(dot.first, w.first, four(a));
    dot.second = vdotq_s32(dot.second, w.second, four(a));
    dot.offset = vdotq_s32(dot.offset, vdupq_n_s8(64), four(a));
  }
  static Floats total(Dot4 dot) { return {vcvtq_f32_s32(dot.first), vcvtq_f32_s32(dot.second)}; }
  static Floats total(Dot8 dot) {
    const int32x4_t offset = vshlq_n_s32(dot.offset, 1);
    return {vcvtq_f32_s32(vaddq_s32(dot.first, offset)), vcvtq_f32_s32(vaddq_s32(dot.second, offset))};
  }
  static Floats halves(const std::uint8_t* bytes, std::size_t) {
    const float16x8_t halves = vreinterpretq_f16_u8(vld1q_u8(bytes));
    return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_f32_f16(vget_high_f16(halves))};
  }
  static Floats floats(const float* x) { return {vld1q_f32(x), vld1q_f32(x + 4)}; }
  static Floats zero() { return repeat(0.0f); }
  static Floats repeat(float value) { return {vdupq_n_f32(value), vdupq_n_f32(value)}; }
  static Floats times(Floats a, float b) { return {vmulq_n_f32(a.first, b), vmulq_n_f32(a.second, b)}; }
  static Floats fma(Floats a, Floats b, Floats c) {
    return {vfmaq_f32(c.first, a.first, b.first), vfmaq_f32(c.second, a.second, b.second)};
  }
  static void store(float* y, Floats value, bool) {
    vst1q_f32(y, value.first);
    vst1q_f32(y + 4, value.second);
  }
};

bool usable() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & (1ul << 20)) != 0;  // asimddp
#else
  return true;  // every arm64 Mac has it
#endif
}

}  // namespace

const Path kNeon = {"neon", usable, quantize_rows, product<Neon>, activate, inner_products<Neon>,
                    kAttentionNeon};

}  // namespace selfspec
