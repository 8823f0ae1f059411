// AVX-VNNI (client processors without AVX-512): dpbusd on 256 bits, four products into a 32-bit sum.
#include <cpuid.h>

#include "ymm.h"

namespace selfspec {
namespace {

struct AvxVnni : Ymm {
  static constexpr int kRows4 = 6, kRows8 = 6;
  using Dot4 = __m256i;
  using Dot8 = __m256i;

  static __m256i whole(__m256i codes) { return codes; }
  static void add(__m256i& dot, __m256i w, const std::int8_t* a) { dot = _mm256_dpbusd_avx_epi32(dot, w, four(a)); }
  static Floats total(__m256i dot) { return _mm256_cvtepi32_ps(dot); }
};

bool usable() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1u << 4)) != 0;  // AVX-VNNI
}

}  // namespace

const Path kAvxVnni = {"avxvnni", usable, quantize_rows, product<AvxVnni>, activate, inner_products<AvxVnni>,
                       kAttentionAvx2};

}  // namespace selfspec
