// The operators of domain `selfspec`, version 1, and their registration.
//
//   MatMulTiles    (x [..., K] float, tiles uint8; bits, N, K)                              -> y [..., N] float
//   GatherTiles    (ids [...] int64, tiles uint8; bits, N, K): rows of an embedding [N, K]  -> [..., K] float
//   GatedMLPTiles  (x [..., K] float, gate_up uint8 [2I, K], down uint8 [N, I]; bits, down_bits, N, K, I, activation)
//
// A tile tensor may have any shape; its bytes are counted before they are read, when the kernel is made where the
// tensor is a constant, and at every call.
#include <atomic>
#include <limits>

#include "export.h"
#include "matmul.h"
#include "ort_abi.h"

namespace selfspec {
namespace {

using ort::Api;
using ort::check;
using ort::Refusal;

std::atomic<const void*> last_tiles{nullptr};

struct OrtPool : Pool {
  OrtPool(const Api* api, const ort::KernelContext* context) : api(api), context(context) {}
  const Api* api;
  const ort::KernelContext* context;

  void run(std::size_t count, void (*task)(void*, std::size_t), void* user) override {
    // No batches: threads claim tasks one by one, so a slow thread does not hold up the others.
    check<ort::ParallelFor>(api, context, task, count, std::size_t{0}, user);
  }
};

// What a kernel reads from its node.
struct Node {
  const Api* api;
  const ort::KernelInfo* info;
  const char* op;

  std::int64_t integer(const char* name) const {
    std::int64_t value = 0;
    if (ort::Status* status = ort::IntAttribute::call(api, info, name, &value)) {
      ort::ReleaseStatus::call(api, status);
      throw Refusal(std::string(op) + " lacks the integer attribute " + name + ".");
    }
    return value;
  }
  std::int64_t multiple(const char* name, std::size_t of) const {
    const std::int64_t value = integer(name);
    if (value <= 0 || value > std::numeric_limits<std::int32_t>::max() || value % static_cast<std::int64_t>(of) != 0) {
      throw Refusal(std::string(op) + ": " + name + " is " + std::to_string(value) +
                    "; it must be a positive multiple of " + std::to_string(of) + ". Pad the weights at export.");
    }
    return value;
  }
  std::string text(const char* name) const {
    char value[32] = {};
    std::size_t size = sizeof value;
    if (ort::Status* status = ort::StringAttribute::call(api, info, name, value, &size)) {
      ort::ReleaseStatus::call(api, status);
      throw Refusal(std::string(op) + " lacks the attribute " + name + ", or it is longer than any known value.");
    }
    return std::string(value, size == 0 ? 0 : size - 1);
  }
};

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
};

// The inputs and the output of one call.
struct Call {
  const Api* api;
  ort::KernelContext* context;

  const ort::Value* input(std::size_t index) const {
    const ort::Value* value = nullptr;
    check<ort::ContextInput>(api, static_cast<const ort::KernelContext*>(context), index, &value);
    return value;
  }
  Tiles tiles(const Weights& weights) const {
    const Tiles tiles = weights.read(api, input(weights.input));
    last_tiles.store(tiles.bytes, std::memory_order_relaxed);
    return tiles;
  }
  float* output(const std::vector<std::int64_t>& shape) const {
    ort::Value* value = nullptr;
    check<ort::ContextOutput>(api, context, std::size_t{0}, shape.data(), shape.size(), &value);
    return ort::data<float>(api, value);
  }
  // x [..., depth]: its shape, refused when the last dimension is another one.
  std::vector<std::int64_t> rows_of(const char* op, std::size_t depth) const {
    auto shape = ort::shape(api, input(0));
    if (shape.empty() || shape.back() != static_cast<std::int64_t>(depth)) {
      throw Refusal(std::string(op) + ": x ends in " + (shape.empty() ? "no dimension" : std::to_string(shape.back())) +
                    "; the weights need " + std::to_string(depth) + ".");
    }
    return shape;
  }
};

std::size_t count(const std::vector<std::int64_t>& shape, std::size_t dimensions) {
  std::size_t product = 1;
  for (std::size_t i = 0; i < dimensions; ++i) product *= static_cast<std::size_t>(shape[i]);
  return product;
}

struct MatMulTiles {
  static constexpr const char* kName = "MatMulTiles";
  static constexpr ort::ElementType kInputs[] = {ort::kFloat, ort::kUint8};
  Weights weights;

  explicit MatMulTiles(const Node& node)
      : weights(node, 1, "bits", node.multiple("N", kTileColumns), node.multiple("K", kBlock)) {}

  void compute(const Call& call) const {
    const Tiles tiles = call.tiles(weights);
    auto shape = call.rows_of(kName, tiles.depth());
    const std::size_t rows = count(shape, shape.size() - 1);
    shape.back() = static_cast<std::int64_t>(tiles.columns());
    float* y = call.output(shape);
    OrtPool pool(call.api, call.context);
    matmul(current_path(), tiles, ort::data<const float>(call.api, call.input(0)), rows, y, pool);
  }
};

struct GatherTiles {
  static constexpr const char* kName = "GatherTiles";
  static constexpr ort::ElementType kInputs[] = {ort::kInt64, ort::kUint8};
  Weights weights;

  explicit GatherTiles(const Node& node)
      : weights(node, 1, "bits", node.multiple("N", kTileColumns), node.multiple("K", kBlock)) {}

  void compute(const Call& call) const {
    const Tiles tiles = call.tiles(weights);
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
    float* out = call.output(shape);
    for (std::size_t i = 0; i < rows; ++i) {
      dequantize_column(tiles, static_cast<std::size_t>(ids[i]), out + i * tiles.depth());
    }
  }
};

struct GatedMLPTiles {
  static constexpr const char* kName = "GatedMLPTiles";
  static constexpr ort::ElementType kInputs[] = {ort::kFloat, ort::kUint8, ort::kUint8};
  Weights gate_up, down;
  Activation activation;

  explicit GatedMLPTiles(const Node& node)
      : gate_up(node, 1, "bits", 2 * node.multiple("I", kBlock), node.multiple("K", kBlock)),
        down(node, 2, "down_bits", node.multiple("N", kTileColumns), node.multiple("I", kBlock)) {
    const std::string name = node.text("activation");
    if (name != "silu" && name != "gelu_tanh") {
      throw Refusal("GatedMLPTiles: unknown activation '" + name + "'; silu and gelu_tanh are known.");
    }
    activation = name == "silu" ? Activation::kSilu : Activation::kGeluTanh;
  }

  void compute(const Call& call) const {
    const Tiles first = call.tiles(gate_up), second = call.tiles(down);
    auto shape = call.rows_of(kName, first.depth());
    const std::size_t rows = count(shape, shape.size() - 1);
    shape.back() = static_cast<std::int64_t>(second.columns());
    float* y = call.output(shape);
    OrtPool pool(call.api, call.context);
    const auto* x = ort::data<const float>(call.api, call.input(0));
    gated_mlp(current_path(), first, second, activation, x, rows, y, pool);
  }
};

template <class Kernel>
struct Made {
  const Api* api;
  Kernel kernel;
};

template <class Kernel>
const ort::CustomOp* custom_op() {
  static const ort::CustomOp op = [] {
    ort::CustomOp o{};
    o.version = ort::kCustomOpVersion;
    o.name = [](const ort::CustomOp*) { return Kernel::kName; };
    o.provider = [](const ort::CustomOp*) -> const char* { return nullptr; };  // the CPU
    o.input_type = [](const ort::CustomOp*, std::size_t i) { return Kernel::kInputs[i]; };
    o.input_count = [](const ort::CustomOp*) { return std::size(Kernel::kInputs); };
    o.output_type = [](const ort::CustomOp*, std::size_t) { return ort::kFloat; };
    o.output_count = [](const ort::CustomOp*) { return std::size_t{1}; };
    o.input_characteristic = o.output_characteristic = [](const ort::CustomOp*, std::size_t) { return 0; };  // required
    o.input_memory = [](const ort::CustomOp*, std::size_t) { return 0; };
    o.variadic_input_arity = o.variadic_output_arity = [](const ort::CustomOp*) { return 1; };
    o.variadic_input_homogeneity = o.variadic_output_homogeneity = [](const ort::CustomOp*) { return 1; };
    o.create_kernel_v2 = [](const ort::CustomOp*, const Api* api, const ort::KernelInfo* info, void** kernel) {
      return ort::guarded(api, [&] { *kernel = new Made<Kernel>{api, Kernel(Node{api, info, Kernel::kName})}; });
    };
    o.compute_v2 = [](void* kernel, ort::KernelContext* context) {
      const auto* made = static_cast<const Made<Kernel>*>(kernel);
      return ort::guarded(made->api, [&] { made->kernel.compute(Call{made->api, context}); });
    };
    o.destroy = [](void* kernel) { delete static_cast<Made<Kernel>*>(kernel); };
    return o;
  }();
  return &op;
}

ort::Domain* make_domain(const Api* api) {
  if (const char* path = self_test()) {
    throw Refusal("The self-test of selfspec's kernels failed: path " + std::string(path) +
                  " differs from the scalar one. Rebuild the package, or export with ONNX Runtime's own kernels.");
  }
  ort::Domain* domain = nullptr;
  check<ort::CreateDomain>(api, "selfspec", &domain);
  for (const ort::CustomOp* op : {custom_op<MatMulTiles>(), custom_op<GatherTiles>(), custom_op<GatedMLPTiles>()}) {
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
