// A sparse MLP over a pool. Rows are sorted by expert, so that an expert's tiles are read once and multiply all rows
// that chose it; tasks are ranges of hidden columns, and then ranges of output columns over all experts, so that one
// thread adds up a number of y, in one order.
#include "sparse_mlp.h"

#include <functional>

namespace selfspec {
namespace {

constexpr std::size_t kRowsAtOnce = 256;              // which bounds working memory
constexpr std::size_t kStep = kBlock / kTileColumns;  // tiles that make a block of the hidden columns
constexpr std::size_t kRunFloats = 1 << 14;           // products that a thread makes in one go: few rows read long runs
constexpr std::size_t kFloatWork = 4;                 // what a float32 product takes, in products of tiles

// Where row r's j-th expert has its row among those of the expert.
struct Slots {
  std::vector<std::size_t> first;  // [experts + 1]: expert e has slots first[e] to first[e + 1] - 1
  std::vector<std::size_t> of;     // [rows, chosen]: the slot
  std::vector<std::size_t> row;    // [slots]
  std::vector<float> weight;       // [slots]

  std::size_t count(std::size_t expert) const { return first[expert + 1] - first[expert]; }
};

// Quantised rows in memory that a thread keeps from call to call.
struct Codes {
  std::int8_t* codes;
  float *scales, *sums;
  std::size_t blocks;  // of a row

  Codes(Scratch& scratch, std::size_t rows, std::size_t blocks) : blocks(blocks) {
    scratch.reserve(rows, blocks);
    codes = scratch.codes.data(), scales = scratch.scales.data(), sums = scratch.sums.data();
  }
  Rows rows(std::size_t first, std::size_t count) const {
    return {codes + first * blocks * kBlock, scales + first * blocks, sums + first * blocks, count};
  }
  void quantize(const Path& path, const float* x, std::size_t row, std::size_t block, std::size_t count) const {
    const std::size_t at = row * blocks + block;
    path.quantize(x, 1, count, codes + at * kBlock, scales + at, sums + at);
  }
  void copy(std::size_t from, std::size_t to) const {
    std::copy_n(codes + from * blocks * kBlock, blocks * kBlock, codes + to * blocks * kBlock);
    std::copy_n(scales + from * blocks, blocks, scales + to * blocks);
    std::copy_n(sums + from * blocks, blocks, sums + to * blocks);
  }
};

void score(const Path& path, const SparseMLP& mlp, const float* x, std::size_t rows, float* logits, Pool& pool) {
  const std::size_t depth = mlp.gate_up.depth();
  const std::size_t tasks = task_count(mlp.experts, kFloatWork * rows * mlp.experts * depth);
  pool.each(tasks, [&](std::size_t i) {
    const Range range(mlp.experts, i, tasks);
    for (std::size_t r = 0; r < rows; ++r) {
      path.inner_products(x + r * depth, mlp.router + range.first * depth, range.last - range.first, depth,
                          logits + r * mlp.experts + range.first);
    }
  });
}

// Ascends with the logit, and among equals as the index falls.
std::uint64_t order(float logit, std::size_t expert) {
  logit += 0.0f;  // of the two zeros one
  std::uint32_t bits;
  std::memcpy(&bits, &logit, sizeof bits);
  bits = logit != logit ? 0xffffffffu : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return std::uint64_t{bits} << 32 | (0xffffffffu - static_cast<std::uint32_t>(expert));
}

// The experts of one row by falling logit, and their weights.
void choose(const SparseMLP& mlp, const float* logits, std::vector<std::uint64_t>& orders, std::int32_t* selected,
            float* weights) {
  for (std::size_t e = 0; e < mlp.experts; ++e) orders[e] = order(logits[e], e);
  std::partial_sort(orders.begin(), orders.begin() + static_cast<std::ptrdiff_t>(mlp.chosen), orders.end(),
                    std::greater<>());
  float largest = 0.0f, sum = 0.0f;
  for (std::size_t j = 0; j < mlp.chosen; ++j) {
    const std::uint32_t expert = 0xffffffffu - static_cast<std::uint32_t>(orders[j]);
    selected[j] = static_cast<std::int32_t>(expert);
    if (j == 0) largest = logits[expert];
    weights[j] = exponential(logits[expert] - largest);
    if (!mlp.sum_over_all) sum += weights[j];
  }
  if (mlp.sum_over_all) {
    for (std::size_t e = 0; e < mlp.experts; ++e) sum += exponential(logits[e] - largest);
  }
  for (std::size_t j = 0; j < mlp.chosen; ++j) weights[j] = weights[j] / sum * mlp.scale;
}

// Counting sort by expert; rows of an expert stay in their order.
void sort(const SparseMLP& mlp, const std::int32_t* selected, std::size_t places, const float* weights,
          std::size_t rows, Slots& slots) {
  const std::size_t chosen = mlp.chosen;
  slots.first.assign(mlp.experts + 2, 0);
  slots.of.resize(rows * chosen), slots.row.resize(rows * chosen), slots.weight.resize(rows * chosen);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t j = 0; j < chosen; ++j) ++slots.first[static_cast<std::size_t>(selected[r * places + j]) + 2];
  }
  for (std::size_t e = 2; e <= mlp.experts; ++e) slots.first[e] += slots.first[e - 1];
  for (std::size_t r = 0; r < rows; ++r) {  // first[e + 1] is the next free slot of e, and ends behind its last
    for (std::size_t j = 0; j < chosen; ++j) {
      const std::size_t slot = slots.first[static_cast<std::size_t>(selected[r * places + j]) + 1]++;
      slots.of[r * chosen + j] = slot, slots.row[slot] = r, slots.weight[slot] = weights[r * chosen + j];
    }
  }
}

// The experts that each row of x chose, into slots.
void route(const Path& path, const SparseMLP& mlp, const float* x, std::size_t rows, std::int32_t* selected,
           std::size_t places, Slots& slots, Pool& pool) {
  thread_local std::vector<float> logits, weights;
  thread_local std::vector<std::uint64_t> orders;
  score(path, mlp, x, rows, reserve(logits, rows * mlp.experts), pool);
  reserve(weights, rows * mlp.chosen);
  orders.resize(mlp.experts);
  for (std::size_t r = 0; r < rows; ++r) {
    std::fill(selected + r * places, selected + (r + 1) * places, -1);
    choose(mlp, logits.data() + r * mlp.experts, orders, selected + r * places, weights.data() + r * mlp.chosen);
  }
  sort(mlp, selected, places, weights.data(), rows, slots);
}

// Each row's codes into its slots.
void spread(const Path& path, const SparseMLP& mlp, const float* x, std::size_t rows, const Slots& slots,
            const Codes& codes, Pool& pool) {
  const std::size_t depth = mlp.gate_up.depth(), tasks = task_count(rows, rows * depth * 4);
  pool.each(tasks, [&](std::size_t i) {
    const Range range(rows, i, tasks);
    for (std::size_t r = range.first; r < range.last; ++r) {
      const std::size_t* of = slots.of.data() + r * mlp.chosen;
      codes.quantize(path, x + r * depth, of[0], 0, codes.blocks);
      for (std::size_t j = 1; j < mlp.chosen; ++j) codes.copy(of[0], of[j]);
    }
  });
}

// Blocks of hidden columns, or tiles of output columns, of an expert. A thread makes a list of them, so that while it is
// at one the weights of the next are on their way: behind a run's last tile lie another expert's.
struct Run {
  std::size_t expert, first, last;
};

using Runs = std::vector<Run>;

// `units` first to last of an expert with `rows` rows, in runs of at most kRunFloats products, and of one step at least.
void add_runs(Runs& runs, std::size_t expert, const Range& units, std::size_t rows, std::size_t unit, std::size_t step) {
  const std::size_t some = std::max(step, kRunFloats / (rows * unit) / step * step);
  for (std::size_t at = units.first; at < units.last; at += some) {
    runs.push_back({expert, at, std::min(at + some, units.last)});
  }
}

// Of a run of hidden columns, gate's first tile; up's lie half an expert behind.
std::size_t gate_tile(const Run& run, std::size_t blocks) { return (2 * blocks * run.expert + run.first) * kStep; }

// Hidden columns for all rows of an expert: gate and up, their product, its codes.
void hide(const Path& path, const SparseMLP& mlp, const Run& run, const std::uint8_t* then, const Slots& slots,
          const Codes& in, const Codes& out) {
  thread_local std::vector<float> memory;
  const std::size_t first = slots.first[run.expert], count = slots.count(run.expert), blocks = run.last - run.first;
  const std::size_t tiles = blocks * kStep, width = blocks * kBlock, stride = 2 * width;
  const std::size_t gate = gate_tile(run, out.blocks), up = gate + out.blocks * kStep;
  const Rows rows = in.rows(first, count);
  float* const values = reserve(memory, count * stride);
  path.product(mlp.gate_up.part(gate, tiles, mlp.gate_up.at(up)), 0, tiles, rows, values, stride);
  path.product(mlp.gate_up.part(up, tiles, then), 0, tiles, rows, values + width, stride);
  for (std::size_t r = 0; r < count; ++r) {
    float* const at = values + r * stride;
    path.activate(mlp.activation, at, at + width, width);
    out.quantize(path, at, first + r, run.first, blocks);
  }
}

void hidden(const Path& path, const SparseMLP& mlp, const Slots& slots, const Codes& in, const Codes& out, Pool& pool) {
  const std::size_t blocks = out.blocks, all = slots.row.size() * blocks;  // blocks of rows, by expert
  const std::size_t tasks = task_count(all, all * 2 * kBlock * mlp.gate_up.depth());
  pool.each(tasks, [&](std::size_t i) {
    const Range range(all, i, tasks);
    thread_local Runs runs;
    runs.clear();
    for (std::size_t e = 0; e < mlp.experts; ++e) {
      const std::size_t rows = slots.count(e), start = slots.first[e] * blocks;
      if (rows == 0) continue;
      // Block b stands at start + b * rows and belongs to the task in whose range that is.
      const auto block = [&](std::size_t at) {
        return at <= start ? 0 : std::min(blocks, (at - start + rows - 1) / rows);
      };
      add_runs(runs, e, {block(range.first), block(range.last)}, rows, 2 * kBlock, 1);
    }
    for (std::size_t n = 0; n < runs.size(); ++n) {
      const auto* then = n + 1 < runs.size() ? mlp.gate_up.at(gate_tile(runs[n + 1], blocks)) : nullptr;
      hide(path, mlp, runs[n], then, slots, in, out);
    }
  });
}

// Output columns of an expert for its rows, added to theirs of y.
void mix(const Path& path, const SparseMLP& mlp, const Run& run, const std::uint8_t* then, const Slots& slots,
         const Codes& in, float* y) {
  thread_local std::vector<float> memory;
  const std::size_t tiles = mlp.down.tiles / mlp.experts, start = slots.first[run.expert];
  const std::size_t count = slots.count(run.expert), some = run.last - run.first, width = some * kTileColumns;
  float* const values = reserve(memory, count * width);
  path.product(mlp.down.part(run.expert * tiles + run.first, some, then), 0, some, in.rows(start, count), values, width);
  for (std::size_t r = 0; r < count; ++r) {
    const float weight = slots.weight[start + r];
    float* const sum = y + (slots.row[start + r] * tiles + run.first) * kTileColumns;
    for (std::size_t c = 0; c < width; ++c) sum[c] += weight * values[r * width + c];
  }
}

void mixed(const Path& path, const SparseMLP& mlp, const Slots& slots, const Codes& in, std::size_t rows, float* y,
           Pool& pool) {
  const std::size_t tiles = mlp.down.tiles / mlp.experts, steps = (tiles + kStep - 1) / kStep;
  const std::size_t tasks = task_count(steps, slots.row.size() * tiles * kTileColumns * mlp.down.depth());
  pool.each(tasks, [&](std::size_t i) {
    const Range range(steps, i, tasks), columns(range.first * kStep, std::min(range.last * kStep, tiles));
    for (std::size_t r = 0; r < rows; ++r) {
      std::fill(y + (r * tiles + columns.first) * kTileColumns, y + (r * tiles + columns.last) * kTileColumns, 0.0f);
    }
    thread_local Runs runs;
    runs.clear();
    for (std::size_t e = 0; e < mlp.experts; ++e) {
      if (slots.count(e) != 0) add_runs(runs, e, columns, slots.count(e), kTileColumns, kStep);
    }
    for (std::size_t n = 0; n < runs.size(); ++n) {
      const Run* next = n + 1 < runs.size() ? &runs[n + 1] : nullptr;
      mix(path, mlp, runs[n], next ? mlp.down.at(next->expert * tiles + next->first) : nullptr, slots, in, y);
    }
  });
}

}  // namespace

void sparse_mlp(const Path& path, const SparseMLP& mlp, const float* x, std::size_t rows, float* y,
                std::int32_t* selected, std::size_t places, Pool& pool) {
  thread_local Scratch inputs, hiddens;
  thread_local Slots memory;
  Slots& slots = memory;  // a thread_local named inside a task would be the worker's own
  const std::size_t depth = mlp.gate_up.depth(), columns = mlp.down.columns() / mlp.experts;
  for (std::size_t row = 0; row < rows; row += kRowsAtOnce) {
    const std::size_t count = std::min(kRowsAtOnce, rows - row);
    route(path, mlp, x + row * depth, count, selected + row * places, places, slots, pool);
    const Codes in(inputs, slots.row.size(), mlp.gate_up.blocks), out(hiddens, slots.row.size(), mlp.down.blocks);
    spread(path, mlp, x + row * depth, count, slots, in, pool);
    hidden(path, mlp, slots, in, out, pool);
    mixed(path, mlp, slots, out, count, y + row * columns, pool);
  }
}

void sigmoid_gate(const Path& path, const float* gate, const float* x, std::size_t depth, std::size_t rows, float* y,
                  std::size_t columns, Pool& pool) {
  const std::size_t tasks = task_count(rows, kFloatWork * rows * (depth + columns));
  pool.each(tasks, [&](std::size_t i) {
    const Range range(rows, i, tasks);
    for (std::size_t r = range.first; r < range.last; ++r) {
      float logit;
      path.inner_products(x + r * depth, gate, 1, depth, &logit);
      const float open = 1.0f / (1.0f + exponential(-logit));
      for (std::size_t c = 0; c < columns; ++c) y[r * columns + c] *= open;
    }
  });
}

}  // namespace selfspec
