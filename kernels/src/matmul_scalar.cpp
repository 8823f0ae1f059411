// The reference path: plain C++, any processor. Eight lanes as an array; every other path must give its bits.
#include <cmath>

#include "half.h"
#include "inner_products.h"
#include "product.h"

namespace selfspec {
namespace {

template <class T>
struct Eight {
  T lane[kTileColumns];
};

struct Scalar {
  static constexpr std::size_t kTiles = 1;
  static constexpr int kRows4 = 1, kRows8 = 1;
  using Bytes = Eight<std::uint8_t[4]>;
  using Dot4 = Eight<std::int32_t>;
  using Dot8 = Eight<std::int32_t>;
  using Floats = Eight<float>;

  template <class F>
  static Floats lanes(F value) {
    Floats out;
    for (std::size_t c = 0; c < kTileColumns; ++c) out.lane[c] = value(c);
    return out;
  }
  static Bytes load(const std::uint8_t* bytes, std::size_t) {
    Bytes out;
    std::memcpy(&out, bytes, sizeof out);
    return out;
  }
  static Bytes whole(Bytes bytes) { return bytes; }
  static Bytes low(Bytes bytes) {
    for (auto& column : bytes.lane)
      for (auto& byte : column) byte &= 15;
    return bytes;
  }
  static Bytes high(Bytes bytes) {
    for (auto& column : bytes.lane)
      for (auto& byte : column) byte >>= 4;
    return bytes;
  }
  static void add(Eight<std::int32_t>& dot, const Bytes& w, const std::int8_t* a) {
    for (std::size_t c = 0; c < kTileColumns; ++c)
      for (int i = 0; i < 4; ++i) dot.lane[c] += w.lane[c][i] * a[i];
  }
  static Floats total(const Eight<std::int32_t>& dot) {
    return lanes([&](std::size_t c) { return static_cast<float>(dot.lane[c]); });
  }
  static Floats halves(const std::uint8_t* bytes, std::size_t) {
    return lanes([&](std::size_t c) { return float_of_half(bytes + 2 * c); });
  }
  static Floats floats(const float* x) {
    return lanes([&](std::size_t c) { return x[c]; });
  }
  static Floats zero() { return repeat(0.0f); }
  static Floats repeat(float value) {
    return lanes([&](std::size_t) { return value; });
  }
  static Floats times(const Floats& a, float b) {
    return lanes([&](std::size_t c) { return a.lane[c] * b; });
  }
  static Floats fma(const Floats& a, const Floats& b, const Floats& c) {
    return lanes([&](std::size_t i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
  }
  static void store(float* y, const Floats& value, bool) { std::memcpy(y, value.lane, sizeof value.lane); }
};

bool usable() { return true; }

}  // namespace

const Path kScalar = {"scalar", usable, quantize_rows, product<Scalar>, activate, inner_products<Scalar>,
                      kAttentionScalar};

}  // namespace selfspec
