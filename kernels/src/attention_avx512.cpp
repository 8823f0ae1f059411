// Attention in 512 bits.
#include "attend.h"
#include "lanes_ymm.h"

namespace selfspec {
namespace {

struct LanesZmm {
  static constexpr std::size_t kLanes = 16;
  static constexpr int kRows = 6;
  static constexpr int vectors(int rows) { return rows <= 2 ? 8 : 4; }
  using Floats = __m512;
  using Half = LanesYmm;

  static Floats load(const float* x) { return _mm512_loadu_ps(x); }
  static void store(float* x, Floats value) { _mm512_storeu_ps(x, value); }
  static Floats repeat(float value) { return _mm512_set1_ps(value); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }  // b where either is NaN
  // As in 256 bits, with four quarters.
  static void transpose(const float* const* rows, std::size_t d, Floats (&out)[4]) {
    __m512 in[4];
    for (int i = 0; i < 4; ++i) {
      in[i] = _mm512_castps128_ps512(_mm_loadu_ps(rows[i] + d));
      in[i] = _mm512_insertf32x4(in[i], _mm_loadu_ps(rows[4 + i] + d), 1);
      in[i] = _mm512_insertf32x4(in[i], _mm_loadu_ps(rows[8 + i] + d), 2);
      in[i] = _mm512_insertf32x4(in[i], _mm_loadu_ps(rows[12 + i] + d), 3);
    }
    const __m512 low0 = _mm512_unpacklo_ps(in[0], in[1]), low2 = _mm512_unpacklo_ps(in[2], in[3]);
    const __m512 high0 = _mm512_unpackhi_ps(in[0], in[1]), high2 = _mm512_unpackhi_ps(in[2], in[3]);
    out[0] = _mm512_shuffle_ps(low0, low2, 0x44);
    out[1] = _mm512_shuffle_ps(low0, low2, 0xee);
    out[2] = _mm512_shuffle_ps(high0, high2, 0x44);
    out[3] = _mm512_shuffle_ps(high0, high2, 0xee);
  }
};

}  // namespace

const AttentionPath kAttentionAvx512 = attention_path<LanesZmm>();

}  // namespace selfspec
