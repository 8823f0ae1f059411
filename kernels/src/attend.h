// The loops of attention, written once; a path hands in its vector type V. attention.h has the arithmetic.
// Nothing here may come from the standard library's templates: the linker would keep one copy for all paths.
//
// Beside what sums.h uses V offers max, add, and transpose(rows, d, out): numbers d .. d + 3 of kLanes rows, out[i]
// holding number d + i of every row.
#pragma once
#include <cmath>
#include <cstring>

#include "activation.h"
#include "attention.h"
#include "sums.h"

namespace selfspec {
namespace {

constexpr std::size_t kSumLanes = 16;

inline std::size_t least(std::size_t a, std::size_t b) { return a < b ? a : b; }
inline std::size_t most(std::size_t a, std::size_t b) { return a < b ? b : a; }
inline std::size_t rounded(std::size_t count) { return (count + kSumLanes - 1) / kSumLanes * kSumLanes; }

struct Span {
  std::size_t first, last;  // empty where last <= first
};

// Which positions of the chunk that begins at `start` line `line` sees, counted from there.
inline Span seen(const Attention& step, const Lines& lines, std::size_t line, std::size_t start) {
  const std::size_t at = step.position + lines.first + line / step.group();
  const std::size_t first = most(step.lowest(at), start), last = least(at + 1, start + kChunk);
  return last <= first ? Span{0, 0} : Span{first - start, last - start};
}

// x [dim], normed where there is a gain, turned where there are tables, times `factor`.
inline void prepare(const float* x, const float* gain, float eps, const float* cos, const float* sin, float factor,
                    std::size_t dim, float* __restrict out) {
  if (gain != nullptr) {
    float squares[8] = {};
    for (std::size_t d = 0; d < dim; d += 8) {
      for (std::size_t i = 0; i < 8; ++i) squares[i] += x[d + i] * x[d + i];
    }
    const float sum = folded<8>(squares, [](float a, float b) { return a + b; });
    const float inverse = 1.0f / __builtin_sqrtf(sum / static_cast<float>(dim) + eps);
    for (std::size_t d = 0; d < dim; ++d) out[d] = x[d] * inverse * gain[d];
  } else {
    std::memcpy(out, x, dim * sizeof(float));
  }
  if (cos != nullptr) {
    const std::size_t half = dim / 2;
    float* __restrict second = out + half;
    for (std::size_t d = 0; d < half; ++d) {
      const float a = out[d], b = second[d];
      out[d] = a * cos[d] - b * sin[d];
      second[d] = a * sin[d] + b * cos[d];
    }
  }
  for (std::size_t d = 0; d < dim; ++d) out[d] *= factor;
}

inline void append(const Attention& step, std::size_t row, float* queries) {
  const std::size_t dim = step.dim, group = step.group(), at = step.position + row;
  const float* cos = step.cos != nullptr ? step.cos + at * (dim / 2) : nullptr;
  const float* sin = step.sin != nullptr ? step.sin + at * (dim / 2) : nullptr;
  const float* x = step.qkv + row * (step.heads + 2 * step.kv_heads) * dim;
  for (std::size_t h = 0; h < step.heads; ++h, x += dim) {
    float* out = queries + ((h / group * step.rows + row) * group + h % group) * dim;
    prepare(x, step.q_gain, step.eps, cos, sin, step.scale, dim, out);
  }
  for (std::size_t g = 0; g < step.kv_heads; ++g, x += dim) {
    prepare(x, step.k_gain, step.eps, cos, sin, 1.0f, dim, step.keys + (g * step.capacity + at) * dim);
  }
  for (std::size_t g = 0; g < step.kv_heads; ++g, x += dim) {
    std::memcpy(step.values + (g * step.capacity + at) * dim, x, dim * sizeof(float));
  }
}

// keys [count, dim] to transposed [dim, kKeys], its first `count` columns and what rounding up makes of them: there the
// last key is taken again, since nothing may be read behind it. Meanwhile the values, which come next, are fetched: a
// prefetch never faults, wherever it points.
template <class V>
void transpose_keys(const float* keys, const float* values, std::size_t count, std::size_t dim, float* transposed) {
  for (std::size_t j = 0; j < rounded(count); j += V::kLanes) {
    const float* rows[V::kLanes];
    for (std::size_t i = 0; i < V::kLanes; ++i) rows[i] = keys + least(j + i, count - 1) * dim;
    for (std::size_t d = 0; d < dim; d += 4) {
      const float* coming = values + j * dim + d * V::kLanes;
      for (std::size_t i = 0; i < 4 * V::kLanes; i += 16) __builtin_prefetch(coming + i, 0, 2);
      typename V::Floats four[4];
      V::transpose(rows, d, four);
      unrolled<4>([&](auto i) SELFSPEC_INLINE { V::store(transposed + (d + i) * kKeys + j, four[i]); });
    }
  }
}

// Scores of the span into weights. What rounding to 16 adds to it weighs exp(-60), the least there is, which a sum of at
// least 1 does not feel.
template <class V>
void weigh(float* scores, Span span, float* largest, float* weights) {
  constexpr int kParts = kSumLanes / V::kLanes;
  const std::size_t first = span.first / kSumLanes * kSumLanes, last = rounded(span.last);
  float lanes[kSumLanes];
  typename V::Floats part[kParts];
  for (std::size_t j = first; j < span.first; ++j) scores[j] = -INFINITY;
  for (std::size_t j = span.last; j < last; ++j) scores[j] = -INFINITY;
  unrolled<kParts>([&](auto n) SELFSPEC_INLINE { part[n] = V::repeat(-INFINITY); });
  for (std::size_t j = first; j < last; j += kSumLanes) {
    unrolled<kParts>([&](auto n) SELFSPEC_INLINE { part[n] = V::max(V::load(scores + j + n * V::kLanes), part[n]); });
  }
  unrolled<kParts>([&](auto n) SELFSPEC_INLINE { V::store(lanes + n * V::kLanes, part[n]); });
  const float top = folded<kSumLanes>(lanes, [](float a, float b) { return a > b ? a : b; });

  for (std::size_t j = first; j < last; ++j) scores[j] = exponential(scores[j] - top);
  unrolled<kParts>([&](auto n) SELFSPEC_INLINE { part[n] = V::repeat(0.0f); });
  for (std::size_t j = first; j < last; j += kSumLanes) {
    unrolled<kParts>([&](auto n) SELFSPEC_INLINE { part[n] = V::add(part[n], V::load(scores + j + n * V::kLanes)); });
  }
  unrolled<kParts>([&](auto n) SELFSPEC_INLINE { V::store(lanes + n * V::kLanes, part[n]); });
  *largest = top;
  *weights = folded<kSumLanes>(lanes, [](float a, float b) { return a + b; });
}

// Lines `line` to line + count - 1, at most V::kRows, and what of the chunk each of them sees. Lines ascend by
// position, so spans do by both ends.
struct Group {
  std::size_t line, count;
  Span spans[8];
  Span any, all;  // what one of them sees at least; what all of them see

  Group(const Attention& step, const Lines& lines, std::size_t line, std::size_t most_lines, std::size_t start)
      : line(line), count(least(most_lines, lines.count - line)), any{kChunk, 0}, all{0, kChunk} {
    for (std::size_t r = 0; r < count; ++r) {
      const Span span = spans[r] = seen(step, lines, line + r, start);
      if (span.first < span.last) any = {least(any.first, span.first), most(any.last, span.last)};
      all = {most(all.first, span.first), least(all.last, span.last)};
    }
  }
};

// Scores of the group against the keys from `from` to from + kKeys - 1 of the chunk, as far as one of its lines sees.
template <class V>
void score(const Attention& step, const Lines& lines, const Group& group, std::size_t from, const float* transposed,
           float* scores) {
  const std::size_t last = least(group.any.last, from + kKeys);
  if (last <= most(group.any.first, from)) return;
  float* out = scores + group.line * kChunk + from;
  const std::size_t columns = rounded(last - from);
  for (std::size_t r = 0; r < group.count; ++r) std::memset(out + r * kChunk, 0, columns * sizeof(float));
  add_products<V>({lines.queries + group.line * step.dim, step.dim, transposed, kKeys, step.dim, out, kChunk, columns},
                  group.count);
}

// Weights of the group times the chunk's values. What not all of its lines see is added line by line, before and
// behind, so that each line takes its values in ascending order and no others.
template <class V>
void mix(const Attention& step, const Group& group, const float* weights, const float* values, float* mixed) {
  const std::size_t dim = step.dim;
  const auto add = [&](std::size_t line, Span span, std::size_t count) {
    if (span.last <= span.first) return;
    add_products<V>({weights + line * kChunk + span.first, kChunk, values + span.first * dim, dim,
                     span.last - span.first, mixed + line * dim, dim, dim},
                    count);
  };
  const Span all = group.all.first < group.all.last ? group.all : Span{kChunk, kChunk};
  for (std::size_t r = 0; r < group.count; ++r) {
    std::memset(mixed + (group.line + r) * dim, 0, dim * sizeof(float));
    add(group.line + r, {group.spans[r].first, least(group.spans[r].last, all.first)}, 1);
  }
  add(group.line, all, group.count);
  for (std::size_t r = 0; r < group.count; ++r) {
    add(group.line + r, {most(group.spans[r].first, all.last), group.spans[r].last}, 1);
  }
}

template <class V>
void chunk(const Attention& step, const Lines& lines, std::size_t index, float* transposed, float* scores, Sums out) {
  static_assert(V::kRows <= sizeof(Group::spans) / sizeof(Span));
  const std::size_t start = index * kChunk, dim = step.dim, at = (lines.kv_head * step.capacity + start) * dim;
  const std::size_t lowest = step.lowest(step.position + lines.first);
  const std::size_t end = step.position + lines.first + (lines.count - 1) / step.group() + 1;
  const std::size_t last = least(kChunk, end - start);
  for (std::size_t from = (most(lowest, start) - start) / kKeys * kKeys; from < last; from += kKeys) {
    const std::size_t here = at + from * dim;
    transpose_keys<V>(step.keys + here, step.values + here, least(kKeys, last - from), dim, transposed);
    for (std::size_t line = 0; line < lines.count; line += V::kRows) {
      score<V>(step, lines, Group(step, lines, line, V::kRows, start), from, transposed, scores);
    }
  }
  for (std::size_t line = 0; line < lines.count; ++line) {
    const Span span = seen(step, lines, line, start);
    if (span.first < span.last) weigh<V>(scores + line * kChunk, span, out.largest + line, out.weights + line);
  }
  for (std::size_t line = 0; line < lines.count; line += V::kRows) {
    mix<V>(step, Group(step, lines, line, V::kRows, start), scores, step.values + at, out.mixed);
  }
}

inline void merge(const Attention& step, const Lines& lines, std::size_t index, Sums part, Sums into) {
  const std::size_t dim = step.dim, start = index * kChunk;
  for (std::size_t line = 0; line < lines.count; ++line) {
    const std::size_t at = step.position + lines.first + line / step.group();
    if (at < start || step.lowest(at) >= start + kChunk) continue;
    const float* x = part.mixed + line * dim;
    float* __restrict y = into.mixed + line * dim;
    if (step.lowest(at) >= start || start == 0) {  // the first that it sees
      std::memcpy(y, x, dim * sizeof(float));
      into.largest[line] = part.largest[line];
      into.weights[line] = part.weights[line];
      continue;
    }
    const float a = into.largest[line], b = part.largest[line], top = b > a ? b : a;
    const float before = exponential(a - top), now = exponential(b - top);
    into.largest[line] = top;
    into.weights[line] = into.weights[line] * before + part.weights[line] * now;
    for (std::size_t d = 0; d < dim; ++d) y[d] = y[d] * before + x[d] * now;
  }
}

inline void finish(const Attention& step, const Lines& lines, Sums sums) {
  const std::size_t dim = step.dim, group = step.group();
  for (std::size_t line = 0; line < lines.count; ++line) {
    const std::size_t row = lines.first + line / group, head = lines.kv_head * group + line % group;
    const float inverse = 1.0f / sums.weights[line];
    const float* x = sums.mixed + line * dim;
    float* __restrict y = step.mixed + (row * step.heads + head) * dim;
    for (std::size_t d = 0; d < dim; ++d) y[d] = x[d] * inverse;
  }
}

template <class V>
constexpr AttentionPath attention_path() {
  return {append, chunk<V>, merge, finish};
}

}  // namespace
}  // namespace selfspec
