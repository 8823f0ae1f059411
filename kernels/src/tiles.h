// The layout of a weight matrix [N, K], and the arithmetic it stands for.
//
//   columns in tiles of 8, k in blocks of 32; all blocks of tile 0, then all of tile 1, ...
//
//       tile 0:  | block 0 | block 1 | ... | block K/32-1 |
//       tile 1:  | block 0 | ...
//
//   one block of one tile, 4 bit (160 bytes):
//
//       bytes   0..127   nibbles: four groups j = 0..3 of 32 bytes, byte 4*c + i of group j belongs to column c:
//                            low nibble   k = 4*j + i
//                            high nibble  k = 4*j + i + 16
//       bytes 128..143   eight fp16 scales, one a column
//       bytes 144..159   eight fp16 minima, one a column
//
//   and 8 bit (288 bytes):
//
//       bytes   0..255   codes: eight groups j = 0..7 of 32 bytes, byte 4*c + i of group j is column c, k = 4*j + i
//       bytes 256..271   scales
//       bytes 272..287   minima
//
//   weight = scale * code + minimum, code unsigned. Symmetric weights leave the minima out (blocks of 144 and 272
//   bytes): a minimum is then -8 or -128 times its scale, and a tenth less is read from memory, which is what a single
//   row waits for. The number of bytes tells which of the two a tensor is.
//
//   A group of 32 bytes holds four k of eight columns: the shape that maddubs, dpbusd and sdot multiply with four
//   activations repeated, so a column's sum stays in one lane and is never added across lanes. Scales lie beside their
//   codes: one stream from memory, one initialiser in the model.
#pragma once
#include <cstddef>
#include <cstdint>

namespace selfspec {

constexpr std::size_t kTileColumns = 8;
constexpr std::size_t kBlock = 32;

constexpr std::size_t code_bytes(int bits) { return kTileColumns * kBlock * static_cast<std::size_t>(bits) / 8; }
constexpr std::size_t block_bytes(int bits, bool minima) { return code_bytes(bits) + kTileColumns * (minima ? 4 : 2); }
// The minimum of a symmetric block, in scales.
constexpr float middle(int bits) { return bits == 4 ? -8.0f : -128.0f; }

struct Tiles {
  const std::uint8_t* bytes;
  std::size_t tiles;   // N / 8
  std::size_t blocks;  // K / 32
  int bits;            // 4 or 8
  bool minima;         // stored, or middle(bits) * scale
  const std::uint8_t* then = nullptr;  // what is read behind the last tile, where that is not what lies there

  std::size_t stride() const { return blocks * block_bytes(bits, minima); }
  std::size_t columns() const { return tiles * kTileColumns; }
  std::size_t depth() const { return blocks * kBlock; }
  const std::uint8_t* at(std::size_t tile) const { return bytes + tile * stride(); }
  // `count` tiles from tile `first` on.
  Tiles part(std::size_t first, std::size_t count, const std::uint8_t* then = nullptr) const {
    return {at(first), count, blocks, bits, minima, then};
  }
};

}  // namespace selfspec
