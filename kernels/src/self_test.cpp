// Every usable path against the scalar one on pseudo-random numbers: all codes, odd tile counts, rows past a register
// tile; activations from where they are nothing to where they are their gate; the gated MLP made of both; attention over
// two chunks, with and without a window, for few rows and many. A miscompiled or misdetected path is found before it
// computes a token.
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
  std::vector<float> numbers(std::size_t count) {  // from -1 to 1
    std::vector<float> x(count);
    for (auto& value : x) value = static_cast<float>(next()) / 1073741824.0f - 1.0f;
    return x;
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

std::vector<float> multiplied(const Path& path, int bits, bool minima) {
  constexpr std::size_t kTiles = 5, kBlocks = 3, kRows = 11;
  Noise noise;
  const auto bytes = random_tiles(noise, bits, minima, kTiles * kBlocks);
  const Tiles tiles{bytes.data(), kTiles, kBlocks, bits, minima};
  const auto x = noise.numbers(kRows * tiles.depth());
  std::vector<float> y(kRows * tiles.columns());
  Alone alone;
  matmul(path, tiles, x.data(), kRows, y.data(), alone);
  return y;
}

std::vector<float> activated(const Path& path, Activation activation) {
  constexpr std::size_t kCount = 141;
  Noise noise;
  const auto up = noise.numbers(kCount);
  auto gate = noise.numbers(kCount);
  for (std::size_t i = 0; i < kCount; ++i) gate[i] += static_cast<float>(i) - 70.0f;
  path.activate(activation, gate.data(), up.data(), kCount);
  return gate;
}

std::vector<float> gated(const Path& path, Activation activation) {
  constexpr std::size_t kIn = 2, kInner = 3, kTiles = 3, kRows = 5;  // blocks, blocks, tiles
  constexpr std::size_t kInnerTiles = 2 * kInner * kBlock / kTileColumns;
  Noise noise;
  const auto first = random_tiles(noise, 4, true, kInnerTiles * kIn);
  const auto second = random_tiles(noise, 8, false, kTiles * kInner);
  const auto x = noise.numbers(kRows * kIn * kBlock);
  std::vector<float> y(kRows * kTiles * kTileColumns);
  Alone alone;
  gated_mlp(path, {first.data(), kInnerTiles, kIn, 4, true}, {second.data(), kTiles, kInner, 8, false}, activation,
            x.data(), kRows, y.data(), alone);
  return y;
}

// Mixed rows, then keys and values, of one step over noise.
std::vector<float> attended(const Path& path, std::size_t rows, std::size_t window) {
  constexpr std::size_t kHeads = 3, kKeyHeads = 1, kDim = 24, kPosition = 110, kCapacity = 140;
  constexpr std::size_t kCache = kKeyHeads * kCapacity * kDim;
  Noise noise;
  const auto qkv = noise.numbers(rows * (kHeads + 2 * kKeyHeads) * kDim), gain = noise.numbers(kDim);
  const auto cos = noise.numbers(kCapacity * kDim / 2), sin = noise.numbers(kCapacity * kDim / 2);
  auto out = noise.numbers(rows * kHeads * kDim + 2 * kCache);
  float* const keys = out.data() + rows * kHeads * kDim;
  Alone alone;
  attention(path,
            {kHeads, kKeyHeads, kDim, window, 0.5f, 1e-6f, rows, kPosition, kCapacity, qkv.data(), cos.data(),
             sin.data(), gain.data(), gain.data(), keys, keys + kCache, out.data()},
            alone);
  return out;
}

// The first path for which result(path, arguments...) is not the scalar one's.
template <class Result, class... Arguments>
const char* differs(Result result, Arguments... arguments) {
  const std::vector<float> want = result(kScalar, arguments...);
  for (const Path* path : paths()) {
    if (path == &kScalar) continue;  // the slowest, against itself
    const std::vector<float> got = result(*path, arguments...);
    if (std::memcmp(want.data(), got.data(), want.size() * sizeof(float)) != 0) return path->name;
  }
  return nullptr;
}

const char* first_to_differ() {
  for (const int bits : {4, 8}) {
    for (const bool minima : {false, true}) {
      if (const char* path = differs(multiplied, bits, minima)) return path;
    }
  }
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    if (const char* path = differs(activated, activation)) return path;
    if (const char* path = differs(gated, activation)) return path;
  }
  for (const std::size_t rows : {1, 5, 24}) {
    for (const std::size_t window : {0, 50}) {
      if (const char* path = differs(attended, rows, window)) return path;
    }
  }
  return nullptr;
}

}  // namespace

// Run once a process: registration asks, and so does everybody who wants to know first.
const char* self_test() {
  static const char* const path = first_to_differ();
  return path;
}

}  // namespace selfspec
