// silu and tanh-gelu as x / (1 + exp(-z)): silu has z = x, gelu z = 2 * sqrt(2 / pi) * (x + 0.044715 x^3), since
// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)). Every operation is elementwise, so a value's bits depend on itself alone.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace selfspec {

enum class Activation { kSilu, kGeluTanh };

namespace {  // internal: each path compiles its own copy with its own instruction set

// exp by range reduction, e^t = 2^n * e^r with |r| <= ln(2) / 2, and a Taylor polynomial of degree 7 (relative error
// under 1e-7). t is clamped to where the quotient is x, or x * 1e-26 in place of something smaller still: a wider range
// divides into subnormal numbers, which cost a hundred cycles each. NaN stays NaN.
inline float exponential(float t) {
  t = t < -60.0f ? -60.0f : t;
  t = t > 60.0f ? 60.0f : t;
  const float shifted = t * 1.44269504f + 12582912.0f;
  std::int32_t n;
  std::memcpy(&n, &shifted, sizeof n);
  n -= 0x4b400000;
  const float whole = shifted - 12582912.0f;
  const float r = (t - whole * 0.693359375f) + whole * 2.12194440e-4f;
  float e = 1.0f / 5040.0f;
  e = e * r + 1.0f / 720.0f;
  e = e * r + 1.0f / 120.0f;
  e = e * r + 1.0f / 24.0f;
  e = e * r + 1.0f / 6.0f;
  e = e * r + 0.5f;
  e = e * r + 1.0f;
  e = e * r + 1.0f;
  const std::uint32_t bits = static_cast<std::uint32_t>(n + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return e * power;
}

inline void silu_times(float* gate, const float* up, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) gate[i] = gate[i] / (1.0f + exponential(-gate[i])) * up[i];
}

inline void gelu_tanh_times(float* gate, const float* up, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float x = gate[i];
    const float z = 1.5957691216f * (x + 0.044715f * (x * x * x));
    gate[i] = x / (1.0f + exponential(-z)) * up[i];
  }
}

inline void activate(Activation activation, float* gate, const float* up, std::size_t count) {
  const auto times = activation == Activation::kSilu ? silu_times : gelu_tanh_times;
  times(gate, up, count);
}

}  // namespace
}  // namespace selfspec
