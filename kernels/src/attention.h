// One step of causal grouped-query attention, and what a path (one instruction set) does of it.
//
// The arithmetic, which paths, threads and the number of rows share out but never change:
//
//   positions are cut into chunks of 128, counted from position 0, wherever a pass or a window begins
//
//   a row at position p sees keys max(0, p - window + 1) .. p; of each chunk that it sees something of:
//     score[j]  = sum over d of q[d] * k[j][d], one d after the other
//     weight[j] = exp(score[j] - the chunk's largest), and their sum, in 16 lanes by j mod 16
//     mixed[d]  = sum over j of weight[j] * v[j][d], one j after the other
//   chunks are merged in ascending order, then divided by the sum of all weights
//
// So a row's bits depend on its own q, its position and the keys and values it sees. Numbers of keys that it does not
// see are computed here and there and thrown away; they take no part in any sum.
#pragma once
#include <cstddef>

#include "unrolled.h"

namespace selfspec {

constexpr std::size_t kChunk = 128;  // positions
constexpr std::size_t kKeys = 64;    // keys that are transposed at a time; a chunk is a multiple of it

struct Attention {
  std::size_t heads, kv_heads, dim;
  std::size_t window;  // positions seen, 0 for all
  float scale;         // of q . k
  float eps;           // of the norms
  std::size_t rows, position, capacity;
  const float* qkv;                // [rows, (heads + 2 kv_heads) dim]
  const float *cos, *sin;          // [positions, dim / 2], or both nullptr
  const float *q_gain, *k_gain;    // [dim], or nullptr
  float *keys, *values;            // [kv_heads, capacity, dim]
  float* mixed;                    // [rows, heads dim]

  // Inlined always: the linker would keep one copy, of whatever instruction set, for all paths.
  SELFSPEC_INLINE std::size_t group() const { return heads / kv_heads; }
  SELFSPEC_INLINE std::size_t total() const { return position + rows; }
  SELFSPEC_INLINE std::size_t lowest(std::size_t at) const {  // position that is seen from position `at`
    return window == 0 || at < window ? 0 : at - window + 1;
  }
};

// Query rows that share the loads of one head's keys and values: line l is head l % group of row first + l / group.
struct Lines {
  std::size_t kv_head, first, count;
  const float* queries;  // [count, dim]
};

// Sums of `count` lines, not yet divided.
struct Sums {
  float* mixed;    // [count, dim]
  float* largest;  // [count]
  float* weights;  // [count]
};

struct AttentionPath {
  // Row `row` of qkv: q, normed, turned and scaled, into queries [kv_heads, rows, group, dim]; k and v into the cache.
  void (*append)(const Attention& step, std::size_t row, float* queries);
  // What the lines see of one chunk. transposed [dim, kKeys] and scores [count, kChunk] are working memory. A line that
  // sees nothing of it gets no sums.
  void (*chunk)(const Attention& step, const Lines& lines, std::size_t chunk, float* transposed, float* scores,
                Sums out);
  // `chunk`, the next one that the lines see, into the sums of those before it.
  void (*merge)(const Attention& step, const Lines& lines, std::size_t chunk, Sums part, Sums into);
  // Sums of all chunks into step.mixed.
  void (*finish)(const Attention& step, const Lines& lines, Sums sums);
};

extern const AttentionPath kAttentionScalar;
#if defined(SELFSPEC_X86)
extern const AttentionPath kAttentionAvx2, kAttentionAvx512;
#elif defined(SELFSPEC_ARM64)
extern const AttentionPath kAttentionNeon;
#endif

}  // namespace selfspec
