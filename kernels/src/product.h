// The loop of every path: y = sum over blocks of d_a * (scale * (codes . a) + minimum * (sum of a)).
// Integers inside a block, float32 across blocks, one order, one rounding sequence (multiply, fma, fma). A path hands
// in its vector type V; the order is written once, here, so paths agree bit for bit and a row never depends on others.
//
// V offers: kTiles (tiles side by side in a vector), Floats, Dot4, Dot8 (running integer sums of a block), kRows4 and
// kRows8 (rows that share an unpacked weight), and the operations used below.
#pragma once
#include "matmul.h"
#include "unrolled.h"

namespace selfspec {
namespace {

template <class V, int Bits>
struct Block;

template <class V>
struct Block<V, 4> {
  using Dot = typename V::Dot4;
  template <int R>
  SELFSPEC_INLINE static inline void dots(const std::uint8_t* block, std::size_t next, const std::int8_t* a,
                                          std::size_t depth, Dot (&dot)[R]) {
    unrolled<4>([&](auto j) SELFSPEC_INLINE {
      const auto packed = V::load(block + 32 * j, next);
      const auto low = V::low(packed), high = V::high(packed);
      unrolled<R>([&](auto r) SELFSPEC_INLINE {
        V::add(dot[r], low, a + r * depth + 4 * j);
        V::add(dot[r], high, a + r * depth + 4 * j + 16);
      });
    });
  }
};

template <class V>
struct Block<V, 8> {
  using Dot = typename V::Dot8;
  template <int R>
  SELFSPEC_INLINE static inline void dots(const std::uint8_t* block, std::size_t next, const std::int8_t* a,
                                          std::size_t depth, Dot (&dot)[R]) {
    unrolled<8>([&](auto j) SELFSPEC_INLINE {
      const auto codes = V::whole(V::load(block + 32 * j, next));
      unrolled<R>([&](auto r) SELFSPEC_INLINE { V::add(dot[r], codes, a + r * depth + 4 * j); });
    });
  }
};

// Asks for `bytes` bytes that the next tiles will need. Without it, memory rests while a second group of rows goes over
// a tile that is in the cache already. An address past the end is harmless: a prefetch never faults.
template <std::size_t Bytes>
inline void prefetch(const std::uint8_t* from) {
#pragma GCC unroll 16
  for (std::size_t at = 0; at < Bytes; at += 64) __builtin_prefetch(from + at, 0, 2);
}

// R rows from `row` on, V::kTiles tiles from `tile` on; `next` is the distance in bytes to the second tile; `coming` are
// the tiles after these.
template <class V, int Bits, bool Minima, int R>
[[gnu::noinline]] void rows_of_tile(const Tiles& tiles, const std::uint8_t* tile, std::size_t next,
                                    const std::uint8_t* coming, const Rows& rows, std::size_t row, float* y,
                                    std::size_t stride) {
  typename V::Floats sum[R];
  unrolled<R>([&](auto r) SELFSPEC_INLINE { sum[r] = V::zero(); });
  constexpr std::size_t kBytes = block_bytes(Bits, Minima);
  const std::size_t blocks = tiles.blocks, depth = tiles.depth();
  const std::int8_t* a = rows.codes + row * depth;
  const float* scales = rows.scales + row * blocks;
  const float* sums = rows.sums + row * blocks;
  for (std::size_t b = 0; b < blocks; ++b, tile += kBytes, a += kBlock) {
    typename Block<V, Bits>::Dot dot[R] = {};
    Block<V, Bits>::template dots<R>(tile, next, a, depth, dot);
    prefetch<V::kTiles * kBytes>(coming + b * V::kTiles * kBytes);
    const auto scale = V::halves(tile + code_bytes(Bits), next);
    const auto minimum = [&] {
      if constexpr (Minima) return V::halves(tile + code_bytes(Bits) + 2 * kTileColumns, next);
      return V::times(scale, middle(Bits));
    }();
    unrolled<R>([&](auto r) SELFSPEC_INLINE {
      const auto weighted = V::fma(scale, V::total(dot[r]), V::times(minimum, sums[r * blocks + b]));
      sum[r] = V::fma(weighted, V::repeat(scales[r * blocks + b]), sum[r]);
    });
  }
  unrolled<R>([&](auto r) SELFSPEC_INLINE { V::store(y + r * stride, sum[r], next != 0); });
}

template <class V, int Bits, bool Minima, int R>
void last_rows(const Tiles& tiles, const std::uint8_t* tile, std::size_t next, const std::uint8_t* coming,
               const Rows& rows, std::size_t row, float* y, std::size_t stride) {
  if constexpr (R > 0) {
    if (rows.count - row == R) return rows_of_tile<V, Bits, Minima, R>(tiles, tile, next, coming, rows, row, y, stride);
    last_rows<V, Bits, Minima, R - 1>(tiles, tile, next, coming, rows, row, y, stride);
  }
}

template <class V, int Bits, bool Minima>
void product_of(const Tiles& tiles, std::size_t first, std::size_t last, const Rows& rows, float* y,
                std::size_t stride) {
  constexpr int kRows = Bits == 4 ? V::kRows4 : V::kRows8;
  for (std::size_t t = first; t < last; t += V::kTiles) {
    const std::uint8_t* tile = tiles.bytes + t * tiles.stride();
    const std::size_t next = V::kTiles == 2 && t + 1 < last ? tiles.stride() : 0;
    const bool ends = t + V::kTiles >= last && tiles.then != nullptr;
    const std::uint8_t* coming = ends ? tiles.then : tile + V::kTiles * tiles.stride();
    float* const to = y + t * kTileColumns;
    std::size_t row = 0;
    for (; row + kRows <= rows.count; row += kRows) {
      rows_of_tile<V, Bits, Minima, kRows>(tiles, tile, next, coming, rows, row, to + row * stride, stride);
    }
    last_rows<V, Bits, Minima, kRows - 1>(tiles, tile, next, coming, rows, row, to + row * stride, stride);
  }
}

template <class V>
void product(const Tiles& tiles, std::size_t first, std::size_t last, const Rows& rows, float* y, std::size_t stride) {
  const auto run = tiles.bits == 4 ? (tiles.minima ? product_of<V, 4, true> : product_of<V, 4, false>)
                                   : (tiles.minima ? product_of<V, 8, true> : product_of<V, 8, false>);
  run(tiles, first, last, rows, y, stride);
}

}  // namespace
}  // namespace selfspec
