// What a path (one instruction set) offers, and what is built on the paths: products and attention split over a pool.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "activation.h"
#include "attention.h"
#include "pool.h"
#include "quantize_rows.h"
#include "tiles.h"

namespace selfspec {

struct Path {
  const char* name;
  bool (*usable)();
  // x [rows, blocks * 32] to codes, scales and sums as Rows holds them.
  void (*quantize)(const float* x, std::size_t rows, std::size_t blocks, std::int8_t* codes, float* scales,
                   float* sums);
  // y[r, 8 * first .. 8 * last), rows `stride` floats apart; tiles from an even `first` on may be taken in pairs.
  void (*product)(const Tiles& tiles, std::size_t first, std::size_t last, const Rows& rows, float* y,
                  std::size_t stride);
  // gate[i] = activation(gate[i]) * up[i]
  void (*activate)(Activation activation, float* gate, const float* up, std::size_t count);
  const AttentionPath& attention;
};

extern const Path kScalar;
#if defined(SELFSPEC_X86)
extern const Path kAvx2, kAvxVnni, kAvx512Vnni;
#elif defined(SELFSPEC_ARM64)
extern const Path kNeon;
#endif

// The paths this library was built with, best first; scalar is last. A compiler may not know all of them.
const std::vector<const Path*>& compiled_paths();
// Those of them that this processor can run.
const std::vector<const Path*>& paths();
// nullptr when the name is unknown or the processor cannot run it.
const Path* find_path(const char* name);
// The path the operators use: the best one unless use_path chose another.
const Path& current_path();
void use_path(const Path& path);

// Working memory of one product, reused from call to call by the thread that owns it.
struct Scratch {
  std::vector<std::int8_t> codes;
  std::vector<float> scales, sums;

  Rows reserve(std::size_t rows, std::size_t blocks);
};

// y [rows, N] = x [rows, K] * tiles.
void matmul(const Path& path, const Tiles& tiles, const float* x, std::size_t rows, float* y, Pool& pool);
// y [rows, down N] = (activation(x * gate) * (x * up)) * down; gate_up holds gate's columns, then up's.
void gated_mlp(const Path& path, const Tiles& gate_up, const Tiles& down, Activation activation, const float* x,
               std::size_t rows, float* y, Pool& pool);
// out [K] = column `column` of the tiles, dequantised.
void dequantize_column(const Tiles& tiles, std::size_t column, float* out);
// One step of attention: appends the rows' keys and values, then mixes what each row sees.
void attention(const Path& path, const Attention& step, Pool& pool);

// Every usable path against the scalar one, bit for bit; the name of the first that differs, or nullptr.
const char* self_test();

}  // namespace selfspec
