// Attention in plain C++, eight lanes as an array; every other path must give its bits.
#include "attend.h"

namespace selfspec {
namespace {

struct LanesScalar {
  static constexpr std::size_t kLanes = 8;
  static constexpr int kRows = 1;
  static constexpr int vectors(int) { return 1; }
  struct Floats {
    float lane[kLanes];
  };

  template <class F>
  static Floats lanes(F value) {
    Floats out;
    for (std::size_t i = 0; i < kLanes; ++i) out.lane[i] = value(i);
    return out;
  }
  static Floats load(const float* x) {
    return lanes([&](std::size_t i) { return x[i]; });
  }
  static void store(float* x, const Floats& value) { std::memcpy(x, value.lane, sizeof value.lane); }
  static Floats repeat(float value) {
    return lanes([&](std::size_t) { return value; });
  }
  static Floats fma(const Floats& a, const Floats& b, const Floats& c) {
    return lanes([&](std::size_t i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
  }
  static Floats add(const Floats& a, const Floats& b) {
    return lanes([&](std::size_t i) { return a.lane[i] + b.lane[i]; });
  }
  static Floats max(const Floats& a, const Floats& b) {
    return lanes([&](std::size_t i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static void transpose(const float* const* rows, std::size_t d, Floats (&out)[4]) {
    for (std::size_t k = 0; k < 4; ++k) out[k] = lanes([&](std::size_t i) { return rows[i][d + k]; });
  }
};

}  // namespace

const AttentionPath kAttentionScalar = attention_path<LanesScalar>();

}  // namespace selfspec
