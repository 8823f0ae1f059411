// What the 256-bit paths share: one tile a vector, eight floats.
#pragma once
#include <immintrin.h>

#include "inner_products.h"
#include "product.h"

namespace selfspec {
namespace {

struct Ymm {
  static constexpr std::size_t kTiles = 1;
  using Floats = __m256;

  static __m256i load(const std::uint8_t* bytes, std::size_t) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
  }
  static __m256i low(__m256i packed) { return _mm256_and_si256(packed, _mm256_set1_epi8(15)); }
  static __m256i high(__m256i packed) { return low(_mm256_srli_epi16(packed, 4)); }
  static __m256i four(const std::int8_t* a) {
    std::int32_t word;
    std::memcpy(&word, a, sizeof word);
    return _mm256_set1_epi32(word);
  }
  static Floats halves(const std::uint8_t* bytes, std::size_t) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  }
  static Floats floats(const float* x) { return _mm256_loadu_ps(x); }
  static Floats zero() { return _mm256_setzero_ps(); }
  static Floats repeat(float value) { return _mm256_set1_ps(value); }
  static Floats times(Floats a, float b) { return _mm256_mul_ps(a, _mm256_set1_ps(b)); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static void store(float* y, Floats value, bool) { _mm256_storeu_ps(y, value); }
};

inline bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

}  // namespace
}  // namespace selfspec
