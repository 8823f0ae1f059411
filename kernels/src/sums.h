// c[r][x] += sum over i of a[r][i] * b[i][x], one i after the other, each a fused multiply-add: the scores of queries
// against transposed keys, and the mix of values by weights. How many rows and columns share a pass changes no sum.
//
// V offers: kLanes (floats of a vector), kRows (most rows of a pass), vectors(rows) (how many a row, a power of two),
// Floats, Half (where kLanes is 16, a type of eight lanes), and the operations used below.
#pragma once
#include <cstddef>

#include "unrolled.h"

namespace selfspec {
namespace {

struct Product {
  const float* a;
  std::size_t a_stride;
  const float* b;
  std::size_t b_stride, count;
  float* c;
  std::size_t c_stride, columns;  // columns a multiple of eight
};

template <class V, int R, int N>
[[gnu::noinline]] void sums_block(const Product& p, std::size_t x) {
  typename V::Floats sum[R * N];
  float* const c = p.c + x;
  unrolled<R>([&](auto r) SELFSPEC_INLINE {
    unrolled<N>([&](auto n) SELFSPEC_INLINE { sum[r * N + n] = V::load(c + r * p.c_stride + n * V::kLanes); });
  });
  const float *a = p.a, *b = p.b + x;
  const std::size_t a_stride = p.a_stride, b_stride = p.b_stride, count = p.count;
  for (std::size_t i = 0; i < count; ++i, b += b_stride) {
    typename V::Floats column[N];
    unrolled<N>([&](auto n) SELFSPEC_INLINE { column[n] = V::load(b + n * V::kLanes); });
    unrolled<R>([&](auto r) SELFSPEC_INLINE {
      const auto factor = V::repeat(a[r * a_stride + i]);
      unrolled<N>([&](auto n) SELFSPEC_INLINE { sum[r * N + n] = V::fma(factor, column[n], sum[r * N + n]); });
    });
  }
  unrolled<R>([&](auto r) SELFSPEC_INLINE {
    unrolled<N>([&](auto n) SELFSPEC_INLINE { V::store(c + r * p.c_stride + n * V::kLanes, sum[r * N + n]); });
  });
}

template <class V, int R, int N>
void sums_columns(const Product& p, std::size_t x) {
  for (; p.columns - x >= N * V::kLanes; x += N * V::kLanes) sums_block<V, R, N>(p, x);
  if constexpr (N > 1) {
    sums_columns<V, R, N / 2>(p, x);
  } else if constexpr (V::kLanes > 8) {
    sums_columns<typename V::Half, R, 1>(p, x);
  }
}

template <class V, int R>
void sums_rows(const Product& p, std::size_t rows) {
  if constexpr (R > 0) {
    if (rows == R) return sums_columns<V, R, V::vectors(R)>(p, 0);
    sums_rows<V, R - 1>(p, rows);
  }
}

// At most V::kRows rows.
template <class V>
void add_products(const Product& p, std::size_t rows) {
  sums_rows<V, V::kRows>(p, rows);
}

}  // namespace
}  // namespace selfspec
