// Attention over a pool. Tasks are heads of the cache by tiles of rows, or, where rows are few, by chunks of positions,
// whose sums are merged afterwards in the order in which one task would have merged them.
#include "matmul.h"

namespace selfspec {
namespace {

constexpr std::size_t kMostLines = 64;  // of a tile, which bounds a thread's working memory
// Floats that the sums of chunks may take before they are merged, 4 MB. As many chunks as fit are computed side by side,
// and then the next ones, so that working memory does not grow with the context.
constexpr std::size_t kMostParts = std::size_t{1} << 20;

float* reserve(std::vector<float>& memory, std::size_t size) {
  if (memory.size() < size) memory.resize(size);
  return memory.data();
}

std::size_t size_of_sums(const Attention& step, std::size_t lines) { return lines * (step.dim + 2); }

Sums sums_at(const Attention& step, std::size_t lines, float* memory) {
  return {memory, memory + lines * step.dim, memory + lines * (step.dim + 1)};
}

void chunk(const Path& path, const Attention& step, const Lines& lines, std::size_t index, Sums out) {
  thread_local std::vector<float> transposed, scores;
  path.attention.chunk(step, lines, index, reserve(transposed, step.dim * kKeys), reserve(scores, lines.count * kChunk),
                       out);
}

// Chunks that rows `first` to `last` of the pass see.
Range chunks_of(const Attention& step, std::size_t first, std::size_t last) {
  return {step.lowest(step.position + first) / kChunk, (step.position + last) / kChunk + 1};
}

void by_chunks(const Path& path, const Attention& step, const float* queries, Pool& pool) {
  thread_local std::vector<float> memory;
  const std::size_t heads = step.kv_heads, count = step.rows * step.group(), size = size_of_sums(step, count);
  const Range seen = chunks_of(step, 0, step.rows - 1);
  const std::size_t at_once = std::max<std::size_t>(1, std::min(seen.last - seen.first, kMostParts / (heads * size)));
  float* const place = reserve(memory, heads * (1 + at_once) * size);
  const auto lines = [&](std::size_t head) { return Lines{head, 0, count, queries + head * count * step.dim}; };
  const auto sums = [&](std::size_t head) { return sums_at(step, count, place + head * size); };
  const auto part = [&](std::size_t unit) { return sums_at(step, count, place + (heads + unit) * size); };

  for (std::size_t first = seen.first; first < seen.last; first += at_once) {
    const std::size_t chunks = std::min(at_once, seen.last - first), units = heads * chunks;
    const std::size_t keys = std::min(chunks * kChunk, step.total() - first * kChunk);
    const std::size_t tasks = task_count(units, 2 * step.heads * step.rows * keys * step.dim);
    pool.each(tasks, [&](std::size_t i) {
      const Range range(units, i, tasks);
      for (std::size_t unit = range.first; unit < range.last; ++unit) {
        chunk(path, step, lines(unit / chunks), first + unit % chunks, part(unit));
      }
    });
    for (std::size_t unit = 0; unit < units; ++unit) {
      const std::size_t head = unit / chunks;
      path.attention.merge(step, lines(head), first + unit % chunks, part(unit), sums(head));
    }
  }
  for (std::size_t head = 0; head < heads; ++head) path.attention.finish(step, lines(head), sums(head));
}

void tile(const Path& path, const Attention& step, const Lines& lines) {
  thread_local std::vector<float> memory;
  const std::size_t size = size_of_sums(step, lines.count);
  float* const both = reserve(memory, 2 * size);
  const Sums sums = sums_at(step, lines.count, both), part = sums_at(step, lines.count, both + size);
  const Range seen = chunks_of(step, lines.first, lines.first + lines.count / step.group() - 1);
  chunk(path, step, lines, seen.first, sums);
  for (std::size_t c = seen.first + 1; c < seen.last; ++c) {
    chunk(path, step, lines, c, part);
    path.attention.merge(step, lines, c, part, sums);
  }
  path.attention.finish(step, lines, sums);
}

void by_tiles(const Path& path, const Attention& step, const float* queries, Pool& pool) {
  const std::size_t group = step.group(), height = std::max<std::size_t>(1, kMostLines / group);
  const std::size_t tiles = (step.rows + height - 1) / height;
  pool.each(step.kv_heads * tiles, [&](std::size_t i) {  // the last rows see most and go first
    const std::size_t head = i % step.kv_heads, first = (tiles - 1 - i / step.kv_heads) * height;
    const std::size_t count = std::min(height, step.rows - first) * group;
    tile(path, step, {head, first, count, queries + (head * step.rows + first) * group * step.dim});
  });
}

}  // namespace

void attention(const Path& path, const Attention& step, Pool& pool) {
  thread_local std::vector<float> memory;
  float* const queries = reserve(memory, step.rows * step.heads * step.dim);
  const std::size_t tasks = task_count(step.rows, 4 * step.rows * (step.heads + 2 * step.kv_heads) * step.dim);
  pool.each(tasks, [&](std::size_t i) {
    const Range range(step.rows, i, tasks);
    for (std::size_t row = range.first; row < range.last; ++row) path.attention.append(step, row, queries);
  });
  const auto mix = step.rows * step.group() <= kMostLines ? by_chunks : by_tiles;
  mix(path, step, queries, pool);
}

}  // namespace selfspec
