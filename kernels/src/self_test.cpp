// Every usable path against the scalar one on pseudo-random numbers: all codes, odd tile counts, rows past a register
// tile; attention over two chunks, with and without a window, for few rows and many. A miscompiled or misdetected path
// is found before it computes a token.
#include <cstring>

#include "matmul.h"

namespace selfspec {
namespace {

struct Alone : Pool {
  void run(std::size_t count, void (*task)(void*, std::size_t), void* user) override {
    for (std::size_t i = 0; i < count; ++i) task(user, i);
  }
};

// Steps of a linear congruential generator (Knuth's MMIX constants), top bits.
struct Noise {
  std::uint64_t state = 1;
  std::uint32_t next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state >> 33);
  }
};

std::vector<std::uint8_t> random_tiles(Noise& noise, int bits, bool minima, std::size_t count) {
  const std::size_t size = block_bytes(bits, minima);
  std::vector<std::uint8_t> bytes(count * size);
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(noise.next());
  for (std::size_t at = code_bytes(bits); at < bytes.size(); at += size) {  // scales and minima of ordinary size
    for (std::size_t i = 0; i < size - code_bytes(bits); i += 2) bytes[at + i + 1] = 0x20 | (bytes[at + i + 1] & 0x87);
  }
  return bytes;
}

bool same(const Path& path, int bits, bool minima) {
  constexpr std::size_t kTiles = 5, kBlocks = 3, kRows = 11;
  Noise noise;
  const auto bytes = random_tiles(noise, bits, minima, kTiles * kBlocks);
  const Tiles tiles{bytes.data(), kTiles, kBlocks, bits, minima};
  std::vector<float> x(kRows * tiles.depth()), want(kRows * tiles.columns()), got(want.size());
  for (auto& value : x) value = static_cast<float>(noise.next()) / 1073741824.0f - 1.0f;
  Alone alone;
  matmul(kScalar, tiles, x.data(), kRows, want.data(), alone);
  matmul(path, tiles, x.data(), kRows, got.data(), alone);
  return std::memcmp(want.data(), got.data(), want.size() * sizeof(float)) == 0;
}

// Mixed rows, then keys and values, of one step over noise.
std::vector<float> attended(const Path& path, std::size_t rows, std::size_t window) {
  constexpr std::size_t kHeads = 3, kKeyHeads = 1, kDim = 24, kPosition = 110, kCapacity = 140;
  constexpr std::size_t kCache = kKeyHeads * kCapacity * kDim;
  Noise noise;
  const auto numbers = [&](std::size_t count) {
    std::vector<float> x(count);
    for (auto& value : x) value = static_cast<float>(noise.next()) / 1073741824.0f - 1.0f;
    return x;
  };
  const auto qkv = numbers(rows * (kHeads + 2 * kKeyHeads) * kDim), gain = numbers(kDim);
  const auto cos = numbers(kCapacity * kDim / 2), sin = numbers(kCapacity * kDim / 2);
  std::vector<float> out = numbers(rows * kHeads * kDim + 2 * kCache);
  float* const keys = out.data() + rows * kHeads * kDim;
  Alone alone;
  attention(path,
            {kHeads, kKeyHeads, kDim, window, 0.5f, 1e-6f, rows, kPosition, kCapacity, qkv.data(), cos.data(),
             sin.data(), gain.data(), gain.data(), keys, keys + kCache, out.data()},
            alone);
  return out;
}

// The first path whose attention differs from the scalar one's.
const char* attention_test(std::size_t rows, std::size_t window) {
  const auto want = attended(kScalar, rows, window);
  for (const Path* path : paths()) {
    const auto got = attended(*path, rows, window);
    if (std::memcmp(want.data(), got.data(), want.size() * sizeof(float)) != 0) return path->name;
  }
  return nullptr;
}

// The first path that differs from the scalar one.
const char* first_to_differ() {
  for (const Path* path : paths()) {
    for (const bool minima : {false, true}) {
      if (!same(*path, 4, minima) || !same(*path, 8, minima)) return path->name;
    }
  }
  for (const std::size_t rows : {1, 5, 24}) {
    for (const std::size_t window : {0, 50}) {
      if (const char* differs = attention_test(rows, window)) return differs;
    }
  }
  return nullptr;
}

}  // namespace

// Run once a process: registration asks, and so does everybody who wants to know first.
const char* self_test() {
  static const char* const differs = first_to_differ();
  return differs;
}

}  // namespace selfspec
