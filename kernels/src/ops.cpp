// The operators of domain `selfspec`, version 1, and their registration.
//
//   MatMulTiles    (x [..., K] float, tiles uint8; bits, N, K)                              -> y [..., N] float
//   GatherTiles    (ids [...] int64, tiles uint8; bits, N, K): rows of an embedding [N, K]  -> [..., K] float
//   GatedMLPTiles  (x [..., K] float, gate_up uint8 [2I, K], down uint8 [N, I]; bits, down_bits, N, K, I, activation)
//   GroupedAttention: attention_op.cpp
//
// A tile tensor may have any shape; its bytes are counted before they are read, when the kernel is made where the
// tensor is a constant, and at every call.
#include <atomic>

#include "export.h"
#include "matmul.h"
#include "ort_op.h"

namespace selfspec {
namespace {

std::atomic<const void*> last_tiles{nullptr};

// One weight input: what its node promises, checked against the tensor that arrives.
struct Weights {
  const char* op;
  std::size_t input, tiles, blocks;
  int bits;

  Weights(const Node& node, std::size_t input, const char* bits_name, std::int64_t n, std::int64_t k)
      : op(node.op), input(input), tiles(static_cast<std::size_t>(n) / kTileColumns),
        blocks(static_cast<std::size_t>(k) / kBlock), bits(0) {
    const std::int64_t value = node.integer(bits_name);
    if (value != 4 && value != 8) {
      throw Refusal(std::string(op) + ": " + bits_name + " is " + std::to_string(value) + "; 4 and 8 are known.");
    }
    bits = static_cast<int>(value);
    int constant = 0;
    const ort::Value* tensor = nullptr;
    check<ort::ConstantInput>(node.api, node.info, input, &constant, &tensor);
    if (constant != 0 && tensor != nullptr) read(node.api, tensor);
  }

  Tiles read(const Api* api, const ort::Value* tensor) const {
    const std::uint64_t need = std::uint64_t{tiles} * blocks * block_bytes(bits, true);
    const std::uint64_t symmetric = std::uint64_t{tiles} * blocks * block_bytes(bits, false);
    std::uint64_t bytes = 1;
    for (const std::int64_t d : ort::shape(api, tensor)) bytes *= static_cast<std::uint64_t>(d);
    if (bytes != need && bytes != symmetric) {
      throw Refusal(std::string(op) + ": input " + std::to_string(input) + " has " + std::to_string(bytes) +
                    " bytes; N=" + std::to_string(tiles * kTileColumns) + ", K=" + std::to_string(blocks * kBlock) +
                    " at " + std::to_string(bits) + " bits take " + std::to_string(need) + ", or " +
                    std::to_string(symmetric) + " without minima. The weights file is damaged or not this model's.");
    }
    return {ort::data<const std::uint8_t>(api, tensor), tiles, blocks, bits, bytes == need};
  }

  Tiles of(const Call& call) const {
    const Tiles tiles = read(call.api, call.input(input));
    last_tiles.store(tiles.bytes, std::memory_order_relaxed);
    return tiles;
  }
};

std::int64_t padded(const Node& node, const char* name, std::size_t of) {
  return node.multiple(name, of, " Pad the weights at export.");
}

std::size_t count(const std::vector<std::int64_t>& shape, std::size_t dimensions) {
  std::size_t product = 1;
  for (std::size_t i = 0; i < dimensions; ++i) product *= static_cast<std::size_t>(shape[i]);
  return product;
}

// x [..., depth]: its shape, refused when the last dimension is another one.
std::vector<std::int64_t> rows_of(const Call& call, const char* op, std::size_t depth) {
  auto shape = ort::shape(call.api, call.input(0));
  if (shape.empty() || shape.back() != static_cast<std::int64_t>(depth)) {
    throw Refusal(std::string(op) + ": x ends in " + (shape.empty() ? "no dimension" : std::to_string(shape.back())) +
                  "; the weights need " + std::to_string(depth) + ".");
  }
  return shape;
}

struct MatMulTiles {
  static constexpr const char* kName = "MatMulTiles";
  static constexpr ort::ElementType kInputs[] = {ort::kFloat, ort::kUint8};
  static constexpr std::size_t kRequired = std::size(kInputs), kOutputs = 1;
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
  static constexpr std::size_t kRequired = std::size(kInputs), kOutputs = 1;
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
  static constexpr ort::ElementType kInputs[] = {ort::kFloat, ort::kUint8, ort::kUint8};
  static constexpr std::size_t kRequired = std::size(kInputs), kOutputs = 1;
  Weights gate_up, down;
  Activation activation;

  explicit GatedMLPTiles(const Node& node)
      : gate_up(node, 1, "bits", 2 * padded(node, "I", kBlock), padded(node, "K", kBlock)),
        down(node, 2, "down_bits", padded(node, "N", kTileColumns), padded(node, "I", kBlock)) {
    const std::string name = node.text("activation");
    if (name != "silu" && name != "gelu_tanh") {
      throw Refusal("GatedMLPTiles: unknown activation '" + name + "'; silu and gelu_tanh are known.");
    }
    activation = name == "silu" ? Activation::kSilu : Activation::kGeluTanh;
  }

  void compute(const Call& call) const {
    const Tiles first = gate_up.of(call), second = down.of(call);
    auto shape = rows_of(call, kName, first.depth());
    const std::size_t rows = count(shape, shape.size() - 1);
    shape.back() = static_cast<std::int64_t>(second.columns());
    float* y = call.output(0, shape);
    OrtPool pool(call.api, call.context);
    const auto* x = ort::data<const float>(call.api, call.input(0));
    gated_mlp(current_path(), first, second, activation, x, rows, y, pool);
  }
};

ort::Domain* make_domain(const Api* api) {
  if (const char* path = self_test()) {
    throw Refusal("The self-test of selfspec's kernels failed: path " + std::string(path) +
                  " differs from the scalar one. Rebuild the package, or export with ONNX Runtime's own kernels.");
  }
  ort::Domain* domain = nullptr;
  check<ort::CreateDomain>(api, "selfspec", &domain);
  for (const ort::CustomOp* op : {custom_op<MatMulTiles>(), custom_op<GatherTiles>(), custom_op<GatedMLPTiles>(),
                                grouped_attention_op()}) {
    check<ort::AddToDomain>(api, domain, op);
  }
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

// Where the last call of an operator found its weights: lets a test see that they lie in the mapped file.
SELFSPEC_EXPORT const void* selfspec_last_tiles() { return selfspec::last_tiles.load(); }
}
