// AVX2 without VNNI: maddubs into 16-bit sums.
// Nibbles are at most 15 and activations at most 127 in magnitude, so the eight pair products of a block fit:
// 8 * 2 * 15 * 127 = 30480 < 32768. Whole bytes would saturate in the first pair, hence two nibble planes for 8 bit.
#include "ymm.h"

namespace selfspec {
namespace {

struct Avx2 : Ymm {
  // Measured: five or six rows in one pass over a tile cost less than four and one; more gain nothing.
  static constexpr int kRows4 = 6, kRows8 = 4;
  using Dot4 = __m256i;
  struct Planes {
    __m256i low, high;
  };
  using Dot8 = Planes;

  static Planes whole(__m256i codes) { return {low(codes), high(codes)}; }
  static void add(__m256i& dot, __m256i w, const std::int8_t* a) {
    dot = _mm256_add_epi16(dot, _mm256_maddubs_epi16(w, four(a)));
  }
  static void add(Planes& dot, const Planes& w, const std::int8_t* a) {
    add(dot.low, w.low, a);
    add(dot.high, w.high, a);
  }
  static __m256i wide(__m256i sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }
  static Floats total(__m256i dot) { return _mm256_cvtepi32_ps(wide(dot)); }
  static Floats total(const Planes& dot) {
    return _mm256_cvtepi32_ps(_mm256_add_epi32(wide(dot.low), _mm256_slli_epi32(wide(dot.high), 4)));
  }
};

}  // namespace

const Path kAvx2 = {"avx2", has_avx2, quantize_rows, product<Avx2>, activate, inner_products<Avx2>,
                    kAttentionAvx2};

}  // namespace selfspec
