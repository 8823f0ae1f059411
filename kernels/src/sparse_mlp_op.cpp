// SparseMLPTiles (x [..., K] float, router [num_experts, K] float, experts_per_token int64 [1],
//                 gate_up uint8 [num_experts 2 I, K], down uint8 [num_experts N, I];
//                 bits, down_bits, activation, N, K, I, num_experts, k, softmax, normalize, scale)
//   -> y [..., N] float, selected [..., k] int32
//
// gate_up holds, for each expert in turn, gate's rows and then up's; down each expert's rows. Of a row's experts the
// first experts_per_token are taken, 1 to k; no other expert's weights are read. sparse_mlp.h has the arithmetic.
#include "sparse_mlp.h"

#include <cmath>

#include "tiles_op.h"

namespace selfspec {
namespace {

enum Input : std::size_t { kX, kRouter, kPerToken, kGateUp, kDown };

[[noreturn]] void refuse(const std::string& sentence) { throw Refusal("SparseMLPTiles: " + sentence); }

struct SparseMLPTiles {
  static constexpr const char* kName = "SparseMLPTiles";
  static constexpr ort::ElementType kInputs[] = {ort::kFloat, ort::kFloat, ort::kInt64, ort::kUint8, ort::kUint8};
  static constexpr ort::ElementType kOutputs[] = {ort::kFloat, ort::kInt32};
  static constexpr std::size_t kRequired = std::size(kInputs);
  std::int64_t experts, most;
  Weights gate_up, down;
  Activation activation;
  bool sum_over_all;
  float scale;

  explicit SparseMLPTiles(const Node& node)
      : experts(node.multiple("num_experts", 1)), most(node.multiple("k", 1)),
        gate_up(node, kGateUp, "bits", stacked(2 * padded(node, "I", kBlock)), padded(node, "K", kBlock)),
        down(node, kDown, "down_bits", stacked(padded(node, "N", kTileColumns)), padded(node, "I", kBlock)),
        activation(activation_of(node)), sum_over_all(false), scale(node.number("scale")) {
    if (most > experts) refuse("k is " + std::to_string(most) + " of " + std::to_string(experts) + " experts.");
    const std::string softmax = node.text("softmax");
    if (softmax != "all" && softmax != "selected") {
      refuse("unknown softmax '" + softmax + "'; all and selected are known.");
    }
    const std::int64_t normalize = node.integer("normalize");
    if (normalize != 0 && normalize != 1) {
      refuse("normalize is " + std::to_string(normalize) + "; 0 and 1 are known.");
    }
    sum_over_all = softmax == "all" && normalize == 0;
    if (!std::isfinite(scale)) refuse("scale is not a finite number.");
  }

  // Rows of the matrices of all experts; bounded, so that no count of bytes wraps around.
  std::int64_t stacked(std::int64_t rows) const {
    if (rows > std::numeric_limits<std::int32_t>::max() / experts) {
      refuse(std::to_string(experts) + " experts of " + std::to_string(rows) + " rows each are no model's.");
    }
    return rows * experts;
  }

  void compute(const Call& call) const {
    const Tiles first = gate_up.of(call), second = down.of(call);
    Shape shape = rows_of(call, kName, first.depth());
    call.need(kName, kRouter, "router", {experts, static_cast<std::int64_t>(first.depth())});
    call.need(kName, kPerToken, "experts_per_token", {1});
    const std::int64_t chosen = *ort::data<const std::int64_t>(call.api, call.input(kPerToken));
    if (chosen < 1 || chosen > most) {
      refuse("experts_per_token is " + std::to_string(chosen) + "; it must be from 1 to " + std::to_string(most) + ".");
    }
    const std::size_t rows = count(shape, shape.size() - 1), all = static_cast<std::size_t>(experts);
    shape.back() = static_cast<std::int64_t>(second.columns() / all);
    float* y = call.output(0, shape);
    shape.back() = most;
    auto* selected = call.output<std::int32_t>(1, shape);
    const auto* x = ort::data<const float>(call.api, call.input(kX));
    const auto* router = ort::data<const float>(call.api, call.input(kRouter));
    const SparseMLP mlp{router, first, second, activation, all, static_cast<std::size_t>(chosen), sum_over_all, scale};
    OrtPool pool(call.api, call.context);
    sparse_mlp(current_path(), mlp, x, rows, y, selected, static_cast<std::size_t>(most), pool);
  }
};

}  // namespace

const ort::CustomOp* sparse_mlp_op() { return custom_op<SparseMLPTiles>(); }

}  // namespace selfspec
