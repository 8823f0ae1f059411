// Activations to int8: per row and block of 32 one scale (largest magnitude / 127) and the sum of the codes.
// Every block is computed by itself and every operation is elementwise or exact (integer maximum and sum), so neither
// the neighbouring rows nor the vector width a path compiles this for can change a bit.
// A block with a NaN or an infinity gets a NaN scale: the row's outputs are then NaN, never a plausible number.
// A block below 1e-35 counts as zero: its inverse scale would overflow.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tiles.h"

namespace selfspec {

struct Rows {
  const std::int8_t* codes;  // [count, blocks * 32]
  const float* scales;       // [count, blocks]
  const float* sums;         // [count, blocks], integers held as float
  std::size_t count;
};

namespace {  // internal: each path compiles its own copy with its own instruction set

inline void quantize_block(const float* x, std::int8_t* codes, float* scale, float* sum) {
  std::uint32_t bits[kBlock];
  std::memcpy(bits, x, sizeof bits);
  std::int32_t top = 0;
  for (std::size_t k = 0; k < kBlock; ++k) {
    const auto magnitude = static_cast<std::int32_t>(bits[k] & 0x7fffffffu);
    top = magnitude > top ? magnitude : top;
  }
  float largest;
  std::memcpy(&largest, &top, sizeof largest);
  const bool finite = top < 0x7f800000;
  const float inverse = finite && largest >= 1e-35f ? 127.0f / largest : 0.0f;
  std::int32_t total = 0;
  for (std::size_t k = 0; k < kBlock; ++k) {
    const float shifted = x[k] * inverse + 12582912.0f;  // 1.5 * 2^23: the sum's low bits are the rounded integer
    std::int32_t code;
    std::memcpy(&code, &shifted, sizeof code);
    code = finite ? code - 0x4b400000 : 0;
    codes[k] = static_cast<std::int8_t>(code);
    total += code;
  }
  const std::uint32_t nan = 0x7fc00000u;
  if (finite) {
    *scale = inverse == 0.0f ? 0.0f : largest / 127.0f;
  } else {
    std::memcpy(scale, &nan, sizeof nan);
  }
  *sum = static_cast<float>(total);
}

inline void quantize_rows(const float* x, std::size_t rows, std::size_t blocks, std::int8_t* codes, float* scales,
                          float* sums) {
  for (std::size_t i = 0; i < rows * blocks; ++i) {
    quantize_block(x + i * kBlock, codes + i * kBlock, scales + i, sums + i);
  }
}

}  // namespace
}  // namespace selfspec
