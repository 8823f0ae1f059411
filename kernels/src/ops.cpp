// The operators of domain `selfspec`, version 1, and their registration.
//
//   MatMulTiles    (x [..., K] float, tiles uint8; bits, N, K)                              -> y [..., N] float
//   GatherTiles    (ids [...] int64, tiles uint8; bits, N, K): rows of an embedding [N, K]  -> [..., K] float
//   GatedMLPTiles  (x [..., K] float, gate_up uint8 [2I, K], down uint8 [N, I], gate? float [1, K];
//                   bits, down_bits, N, K, I, activation): with a gate, times sigmoid(x . gate)  -> y [..., N] float
//   SparseMLPTiles: sparse_mlp_op.cpp
//   GroupedAttention: attention_op.cpp
#include "export.h"
#include "sparse_mlp.h"
#include "tiles_op.h"

namespace selfspec {

std::atomic<const void*> last_tiles{nullptr};

namespace {

struct MatMulTiles {
  static constexpr const char* kName = "MatMulTiles";
  static constexpr ort::ElementType kInputs[] = {ort::kFloat, ort::kUint8};
  static constexpr ort::ElementType kOutputs[] = {ort::kFloat};
  static constexpr std::size_t kRequired = std::size(kInputs);
  Weights weights;

  explicit MatMulTiles(const Node& node)
      : weights(node, 1, "bits", padded(node, "N", kTileColumns), padded(node, "K", kBlock)) {}

  void compute(const Call& call) const {
    const Tiles tiles = weights.of(call);
    auto shape = rows_of(call, kName, tiles.depth());
    const std::size_t rows = count(shape, shape.size() - 1);
    shape.back() = static_cast<std::int64_t>(tiles.columns());
    float* y = call.output(0, shape);
    OrtPool pool(call.api, call.context);
    matmul(current_path(), tiles, ort::data<const float>(call.api, call.input(0)), rows, y, pool);
  }
};

struct GatherTiles {
  static constexpr const char* kName = "GatherTiles";
  static constexpr ort::ElementType kInputs[] = {ort::kInt64, ort::kUint8};
  static constexpr ort::ElementType kOutputs[] = {ort::kFloat};
  static constexpr std::size_t kRequired = std::size(kInputs);
  Weights weights;

  explicit GatherTiles(const Node& node)
      : weights(node, 1, "bits", padded(node, "N", kTileColumns), padded(node, "K", kBlock)) {}

  void compute(const Call& call) const {
    const Tiles tiles = weights.of(call);
    auto shape = ort::shape(call.api, call.input(0));
    const std::size_t rows = count(shape, shape.size());
    const auto* ids = ort::data<const std::int64_t>(call.api, call.input(0));
    for (std::size_t i = 0; i < rows; ++i) {
      if (static_cast<std::uint64_t>(ids[i]) >= tiles.columns()) {  // a negative one is huge
        throw Refusal("GatherTiles: id " + std::to_string(ids[i]) + " is outside the table of " +
                      std::to_string(tiles.columns()) + " rows.");
      }
    }
    shape.push_back(static_cast<std::int64_t>(tiles.depth()));
    float* out = call.output(0, shape);
    for (std::size_t i = 0; i < rows; ++i) {
      dequantize_column(tiles, static_cast<std::size_t>(ids[i]), out + i * tiles.depth());
    }
  }
};

struct GatedMLPTiles {
  static constexpr const char* kName = "GatedMLPTiles";
  static constexpr ort::ElementType kInputs[] = {ort::kFloat, ort::kUint8, ort::kUint8, ort::kFloat};
  static constexpr ort::ElementType kOutputs[] = {ort::kFloat};
  static constexpr std::size_t kRequired = 3;
  Weights gate_up, down;
  Activation activation;

  explicit GatedMLPTiles(const Node& node)
      : gate_up(node, 1, "bits", 2 * padded(node, "I", kBlock), padded(node, "K", kBlock)),
        down(node, 2, "down_bits", padded(node, "N", kTileColumns), padded(node, "I", kBlock)),
        activation(activation_of(node)) {}

  void compute(const Call& call) const {
    const Tiles first = gate_up.of(call), second = down.of(call);
    auto shape = rows_of(call, kName, first.depth());
    const std::size_t rows = count(shape, shape.size() - 1);
    const bool gated = call.input(3) != nullptr;
    if (gated) call.need(kName, 3, "gate", {1, shape.back()});
    shape.back() = static_cast<std::int64_t>(second.columns());
    float* y = call.output(0, shape);
    OrtPool pool(call.api, call.context);
    const auto* x = ort::data<const float>(call.api, call.input(0));
    gated_mlp(current_path(), first, second, activation, x, rows, y, pool);
    if (gated) {
      const auto* gate = ort::data<const float>(call.api, call.input(3));
      sigmoid_gate(current_path(), gate, x, first.depth(), rows, y, second.columns(), pool);
    }
  }
};

const std::vector<const ort::CustomOp*>& operators() {
  static const std::vector<const ort::CustomOp*> all = {custom_op<MatMulTiles>(), custom_op<GatherTiles>(),
                                                        custom_op<GatedMLPTiles>(), sparse_mlp_op(),
                                                        grouped_attention_op()};
  return all;
}

ort::Domain* make_domain(const Api* api) {
  if (const char* path = self_test()) {
    throw Refusal("The self-test of selfspec's kernels failed: path " + std::string(path) +
                  " differs from the scalar one. Rebuild the package, or export with ONNX Runtime's own kernels.");
  }
  ort::Domain* domain = nullptr;
  check<ort::CreateDomain>(api, "selfspec", &domain);
  for (const ort::CustomOp* op : operators()) check<ort::AddToDomain>(api, domain, op);
  return domain;
}

}  // namespace
}  // namespace selfspec

extern "C" {

// Called by ONNX Runtime when the library is registered with session options.
SELFSPEC_EXPORT selfspec::ort::Status* RegisterCustomOps(selfspec::ort::SessionOptions* options,
                                                        const selfspec::ort::ApiBase* base) {
  using namespace selfspec;
  const ort::Api* api = base->get_api(ort::kApiVersion);
  if (api == nullptr) {
    const std::string sentence = "selfspec's kernels need ONNX Runtime 1.17 or newer; this is " +
                                 std::string(base->get_version()) + ". Upgrade onnxruntime.";
    return ort::CreateStatus::call(base->get_api(1), ort::kFail, sentence.c_str());
  }
  return ort::guarded(api, [&] {
    static ort::Domain* const domain = make_domain(api);  // for the life of the process: sessions keep pointing at it
    check<ort::AddDomain>(api, options, domain);
  });
}

// The names of the operators, separated by commas.
SELFSPEC_EXPORT const char* selfspec_operators() {
  static const std::string names = [] {
    std::string joined;
    for (const auto* op : selfspec::operators()) joined += (joined.empty() ? "" : ",") + std::string(op->name(op));
    return joined;
  }();
  return names.c_str();
}

// Where the last call of an operator found its weights: lets a test see that they lie in the mapped file.
SELFSPEC_EXPORT const void* selfspec_last_tiles() { return selfspec::last_tiles.load(); }
}
