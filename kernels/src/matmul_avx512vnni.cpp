// AVX-512 VNNI: two tiles side by side in 512 bits, thirty-two registers, so eight rows share an unpacked weight.
#include <immintrin.h>

#include "inner_products.h"
#include "product.h"

namespace selfspec {
namespace {

struct Avx512Vnni {
  static constexpr std::size_t kTiles = 2;
  static constexpr int kRows4 = 8, kRows8 = 8;
  using Dot4 = __m512i;
  using Dot8 = __m512i;
  using Floats = __m512;

  // A lone last tile is taken twice (next = 0); its second half is not stored.
  static __m512i load(const std::uint8_t* bytes, std::size_t next) {
    const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
    const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + next));
    return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
  }
  static __m512i whole(__m512i codes) { return codes; }
  static __m512i low(__m512i packed) { return _mm512_and_si512(packed, _mm512_set1_epi8(15)); }
  static __m512i high(__m512i packed) { return low(_mm512_srli_epi16(packed, 4)); }
  static void add(__m512i& dot, __m512i w, const std::int8_t* a) {
    std::int32_t word;
    std::memcpy(&word, a, sizeof word);
    dot = _mm512_dpbusd_epi32(dot, w, _mm512_set1_epi32(word));
  }
  static Floats total(__m512i dot) { return _mm512_cvtepi32_ps(dot); }
  static Floats halves(const std::uint8_t* bytes, std::size_t next) {
    const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + next));
    return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1));
  }
  static Floats floats(const float* x) { return _mm512_loadu_ps(x); }
  static Floats zero() { return _mm512_setzero_ps(); }
  static Floats repeat(float value) { return _mm512_set1_ps(value); }
  static Floats times(Floats a, float b) { return _mm512_mul_ps(a, _mm512_set1_ps(b)); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static void store(float* y, Floats value, bool both) {
    _mm512_mask_storeu_ps(y, static_cast<__mmask16>(both ? 0xffff : 0xff), value);
  }
};

bool usable() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

}  // namespace

const Path kAvx512Vnni = {"avx512vnni", usable, quantize_rows, product<Avx512Vnni>, activate,
                          inner_products<Avx512Vnni>, kAttentionAvx512};

}  // namespace selfspec
