// Inner products of float32 rows: sixteen running sums by d mod 16, each a chain of fused multiply-adds, folded by
// halves. How many rows share a pass changes no sum, so a product's bits depend on its own two rows alone.
// V is the vector type of product.h.
#pragma once
#include "matmul.h"
#include "unrolled.h"

namespace selfspec {
namespace {

constexpr std::size_t kInnerLanes = 16;

template <class V, int R>
[[gnu::noinline]] void inner_products_of(const float* x, const float* rows, std::size_t depth, float* out) {
  constexpr std::size_t kLanes = V::kTiles * kTileColumns;
  constexpr int kParts = kInnerLanes / kLanes;
  typename V::Floats sum[R * kParts];
  unrolled<R * kParts>([&](auto i) SELFSPEC_INLINE { sum[i] = V::zero(); });
  for (std::size_t d = 0; d < depth; d += kInnerLanes) {
    typename V::Floats part[kParts];
    unrolled<kParts>([&](auto n) SELFSPEC_INLINE { part[n] = V::floats(x + d + n * kLanes); });
    unrolled<R>([&](auto r) SELFSPEC_INLINE {
      unrolled<kParts>([&](auto n) SELFSPEC_INLINE {
        sum[r * kParts + n] = V::fma(V::floats(rows + r * depth + d + n * kLanes), part[n], sum[r * kParts + n]);
      });
    });
  }
  unrolled<R>([&](auto r) SELFSPEC_INLINE {
    float lanes[kInnerLanes];
    unrolled<kParts>([&](auto n) SELFSPEC_INLINE { V::store(lanes + n * kLanes, sum[r * kParts + n], true); });
    out[r] = folded<kInnerLanes>(lanes, [](float a, float b) { return a + b; });
  });
}

template <class V>
void inner_products(const float* x, const float* rows, std::size_t count, std::size_t depth, float* out) {
  constexpr int kRows = 4 * V::kTiles;  // eight running vectors on every path hide the latency of a multiply-add
  std::size_t i = 0;
  for (; i + kRows <= count; i += kRows) inner_products_of<V, kRows>(x, rows + i * depth, depth, out + i);
  for (; i < count; ++i) inner_products_of<V, 1>(x, rows + i * depth, depth, out + i);
}

}  // namespace
}  // namespace selfspec
