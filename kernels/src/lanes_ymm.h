// Eight floats in 256 bits, for attention. Used by two paths, each with its own copy.
#pragma once
#include <immintrin.h>

#include <cstddef>

namespace selfspec {
namespace {

struct LanesYmm {
  static constexpr std::size_t kLanes = 8;
  static constexpr int kRows = 6;
  static constexpr int vectors(int rows) { return rows == 1 ? 8 : rows == 2 ? 4 : 2; }
  using Floats = __m256;

  static Floats load(const float* x) { return _mm256_loadu_ps(x); }
  static void store(float* x, Floats value) { _mm256_storeu_ps(x, value); }
  static Floats repeat(float value) { return _mm256_set1_ps(value); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  static Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }  // b where either is NaN
  // Quarter q of register i takes row 4 q + i; transposed inside the quarters, register d holds number d of every row.
  static void transpose(const float* const* rows, std::size_t d, Floats (&out)[4]) {
    __m256 in[4];
    for (int i = 0; i < 4; ++i) {
      in[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(rows[i] + d)), _mm_loadu_ps(rows[4 + i] + d), 1);
    }
    const __m256 low0 = _mm256_unpacklo_ps(in[0], in[1]), low2 = _mm256_unpacklo_ps(in[2], in[3]);
    const __m256 high0 = _mm256_unpackhi_ps(in[0], in[1]), high2 = _mm256_unpackhi_ps(in[2], in[3]);
    out[0] = _mm256_shuffle_ps(low0, low2, 0x44);
    out[1] = _mm256_shuffle_ps(low0, low2, 0xee);
    out[2] = _mm256_shuffle_ps(high0, high2, 0x44);
    out[3] = _mm256_shuffle_ps(high0, high2, 0xee);
  }
};

}  // namespace
}  // namespace selfspec
