// Products over a pool. The split is over columns only: how many tasks there are, and which thread runs one, decides
// where a column is computed and never in which order it is summed.
#include "matmul.h"

#include <algorithm>

#include "half.h"

namespace selfspec {
namespace {

constexpr std::size_t kMlpRows = 128;  // rows of a fused MLP at a time, which bounds its working memory

Rows quantized(const Path& path, const float* x, std::size_t rows, std::size_t blocks, Scratch& scratch, Pool& pool) {
  const Rows out = scratch.reserve(rows, blocks);
  const std::size_t depth = blocks * kBlock, tasks = task_count(rows, rows * depth * 4);
  pool.each(tasks, [&](std::size_t i) {
    const Range range(rows, i, tasks);
    path.quantize(x + range.first * depth, range.last - range.first, blocks, scratch.codes.data() + range.first * depth,
                  scratch.scales.data() + range.first * blocks, scratch.sums.data() + range.first * blocks);
  });
  return out;
}

void product(const Path& path, const Tiles& tiles, const Rows& rows, float* y, Pool& pool) {
  const std::size_t pairs = (tiles.tiles + 1) / 2;
  const std::size_t tasks = task_count(pairs, tiles.columns() * tiles.depth() * rows.count);
  pool.each(tasks, [&](std::size_t i) {
    const Range range(pairs, i, tasks);
    path.product(tiles, 2 * range.first, std::min(2 * range.last, tiles.tiles), rows, y, tiles.columns());
  });
}

// One call of at most kMlpRows rows: gate, up, their product and its quantisation by ranges of 32 columns, then down.
void mlp_rows(const Path& path, const Tiles& gate_up, const Tiles& down, Activation activation, const float* x,
              std::size_t rows, float* y, Pool& pool) {
  thread_local Scratch input, hidden;
  thread_local std::vector<float> products;
  const std::size_t inner = down.depth(), units = down.blocks, unit_tiles = kBlock / kTileColumns;
  const Rows a = quantized(path, x, rows, gate_up.blocks, input, pool);
  const Rows h = hidden.reserve(rows, units);
  if (products.size() < rows * 2 * inner) products.resize(rows * 2 * inner);
  float* const values = products.data();
  Scratch& codes = hidden;  // a thread_local named inside the task would be the worker's own
  const std::size_t tasks = task_count(units, gate_up.columns() * gate_up.depth() * rows);
  pool.each(tasks, [&](std::size_t i) {
    const Range range(units, i, tasks);
    const std::size_t first = range.first * unit_tiles, last = range.last * unit_tiles, half = gate_up.tiles / 2;
    path.product(gate_up, first, last, a, values, 2 * inner);
    path.product(gate_up, half + first, half + last, a, values, 2 * inner);
    for (std::size_t r = 0; r < rows; ++r) {
      float* gate = values + r * 2 * inner + range.first * kBlock;
      const std::size_t blocks = range.last - range.first, at = r * units + range.first;
      path.activate(activation, gate, gate + inner, blocks * kBlock);
      path.quantize(gate, 1, blocks, codes.codes.data() + at * kBlock, codes.scales.data() + at,
                    codes.sums.data() + at);
    }
  });
  product(path, down, h, y, pool);
}

}  // namespace

Rows Scratch::reserve(std::size_t rows, std::size_t blocks) {
  if (codes.size() < rows * blocks * kBlock) codes.resize(rows * blocks * kBlock);
  if (scales.size() < rows * blocks) scales.resize(rows * blocks);
  if (sums.size() < rows * blocks) sums.resize(rows * blocks);  // by itself: there may have been memory for one only
  return {codes.data(), scales.data(), sums.data(), rows};
}

void matmul(const Path& path, const Tiles& tiles, const float* x, std::size_t rows, float* y, Pool& pool) {
  thread_local Scratch thread_scratch;
  Scratch& scratch = thread_scratch;
  product(path, tiles, quantized(path, x, rows, tiles.blocks, scratch, pool), y, pool);
}

void gated_mlp(const Path& path, const Tiles& gate_up, const Tiles& down, Activation activation, const float* x,
               std::size_t rows, float* y, Pool& pool) {
  for (std::size_t row = 0; row < rows; row += kMlpRows) {
    mlp_rows(path, gate_up, down, activation, x + row * gate_up.depth(), std::min(kMlpRows, rows - row),
             y + row * down.columns(), pool);
  }
}

void dequantize_column(const Tiles& tiles, std::size_t column, float* out) {
  const std::size_t c = column % kTileColumns, codes = code_bytes(tiles.bits);
  const std::uint8_t* block = tiles.bytes + column / kTileColumns * tiles.stride();
  for (std::size_t b = 0; b < tiles.blocks; ++b, block += tiles.stride() / tiles.blocks, out += kBlock) {
    const float scale = float_of_half(block + codes + 2 * c);
    const float minimum =
        tiles.minima ? float_of_half(block + codes + 2 * (kTileColumns + c)) : middle(tiles.bits) * scale;
    for (std::size_t k = 0; k < kBlock; ++k) {
      const std::size_t group = k / 4;
      const int code = tiles.bits == 8  ? block[32 * group + 4 * c + k % 4]
                       : group < 4 ? block[32 * group + 4 * c + k % 4] & 15
                                   : block[32 * (group - 4) + 4 * c + k % 4] >> 4;
      out[k] = scale * static_cast<float>(code) + minimum;
    }
  }
}

}  // namespace selfspec
