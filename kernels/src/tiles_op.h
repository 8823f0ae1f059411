// What the operators over tiles share: reading a weight input, whose bytes are counted before they are read, when the
// kernel is made where the tensor is a constant, and at every call. A tile tensor may have any shape.
#pragma once
#include <atomic>

#include "matmul.h"
#include "ort_op.h"

namespace selfspec {

extern std::atomic<const void*> last_tiles;

const ort::CustomOp* sparse_mlp_op();

namespace {

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

inline std::int64_t padded(const Node& node, const char* name, std::size_t of) {
  return node.multiple(name, of, " Pad the weights at export.");
}

inline Activation activation_of(const Node& node) {
  const std::string name = node.text("activation");
  if (name == "silu") return Activation::kSilu;
  if (name == "gelu_tanh") return Activation::kGeluTanh;
  throw Refusal(std::string(node.op) + ": unknown activation '" + name + "'; silu and gelu_tanh are known.");
}

inline std::size_t count(const Shape& shape, std::size_t dimensions) {
  std::size_t product = 1;
  for (std::size_t i = 0; i < dimensions; ++i) product *= static_cast<std::size_t>(shape[i]);
  return product;
}

// x [..., depth]: its shape, refused when the last dimension is another one.
inline Shape rows_of(const Call& call, const char* op, std::size_t depth) {
  Shape shape = ort::shape(call.api, call.input(0));
  if (shape.empty() || shape.back() != static_cast<std::int64_t>(depth)) {
    throw Refusal(std::string(op) + ": x ends in " + (shape.empty() ? "no dimension" : std::to_string(shape.back())) +
                  "; the weights need " + std::to_string(depth) + ".");
  }
  return shape;
}

}  // namespace
}  // namespace selfspec
