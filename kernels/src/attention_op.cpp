// GroupedAttention (qkv [1, T, (H + 2 G) D], past_key, past_value [1, G, capacity, D], seqlens_k int32 [1],
//                   total_sequence_length int32 [1], cos?, sin? [positions, D / 2], q_gain?, k_gain? [D];
//                   num_heads = H, kv_num_heads = G, head_dim = D, scale, window, do_rotary, eps)
//   -> mixed [1, T, H D], present_key, present_value
//
// The last of the T rows has position seqlens_k. q and k of a row are normed by head where there is a gain, and turned
// (the two halves of a head being the two coordinates) with do_rotary; k and v become row `position` of the cache.
// Past and present are meant to be one buffer each; where they are not, the rows before the first position are copied
// and those behind the last one are zero. A row sees `window` positions, its own being the last; all where it is 0.
#include <cmath>
#include <cstring>

#include "matmul.h"
#include "ort_op.h"

namespace selfspec {
namespace {

enum Input : std::size_t { kQkv, kPastKey, kPastValue, kLast, kTotal, kCos, kSin, kQGain, kKGain };

[[noreturn]] void refuse(const std::string& sentence) { throw Refusal("GroupedAttention: " + sentence); }

std::size_t bytes(std::size_t rows, std::size_t dim) { return rows * dim * sizeof(float); }

// The rows of a cache that a step does not write, where the present is not the past.
void carry_over(const Attention& step, const float* past, float* present) {
  if (past == present) return;
  for (std::size_t head = 0; head < step.kv_heads; ++head) {
    const std::size_t at = head * step.capacity * step.dim, end = at + step.total() * step.dim;
    std::memcpy(present + at, past + at, bytes(step.position, step.dim));
    std::memset(present + end, 0, bytes(step.capacity - step.total(), step.dim));
  }
}

struct GroupedAttention {
  static constexpr const char* kName = "GroupedAttention";
  static constexpr ort::ElementType kInputs[] = {ort::kFloat, ort::kFloat, ort::kFloat, ort::kInt32, ort::kInt32,
                                                 ort::kFloat, ort::kFloat, ort::kFloat, ort::kFloat};
  static constexpr ort::ElementType kOutputs[] = {ort::kFloat, ort::kFloat, ort::kFloat};
  static constexpr std::size_t kRequired = 5;
  static constexpr std::int64_t kMostHeads = 4096, kMostDim = 1024;  // what scratch and products of sizes are bounded by
  std::int64_t heads, kv_heads, dim, window;
  bool rotary;
  float scale, eps;

  explicit GroupedAttention(const Node& node)
      : heads(node.multiple("num_heads", 1)), kv_heads(node.multiple("kv_num_heads", 1)),
        dim(node.multiple("head_dim", 8)), window(node.integer("window")), rotary(false),
        scale(node.number("scale")), eps(node.number("eps")) {
    if (heads > kMostHeads || kv_heads > kMostHeads || dim > kMostDim) {
      refuse("more than " + std::to_string(kMostHeads) + " heads, or heads of more than " + std::to_string(kMostDim) +
             " values, are no model's.");
    }
    if (heads % kv_heads != 0) {
      refuse(std::to_string(heads) + " heads cannot share " + std::to_string(kv_heads) + " key heads evenly.");
    }
    if (window < 0) refuse("window is " + std::to_string(window) + "; it must be positive, or 0 for none.");
    const std::int64_t turns = node.integer("do_rotary");
    if (turns != 0 && turns != 1) refuse("do_rotary is " + std::to_string(turns) + "; 0 and 1 are known.");
    rotary = turns == 1;
    if (!std::isfinite(scale)) refuse("scale is not a finite number.");
    if (!(eps >= 0) || !std::isfinite(eps)) refuse("eps must be a finite number and not negative.");
  }

  void compute(const Call& call) const {
    const std::int64_t width = (heads + 2 * kv_heads) * dim;
    const Shape qkv = ort::shape(call.api, call.input(kQkv)), cache = ort::shape(call.api, call.input(kPastKey));
    if (qkv.size() != 3 || qkv[0] != 1 || qkv[1] < 1 || qkv[2] != width) {
      refuse("qkv is " + written(qkv) + "; [1, rows, " + std::to_string(width) + "] is needed, with one row or more.");
    }
    if (cache.size() != 4) refuse("past_key is " + written(cache) + "; it must have four dimensions.");
    const std::int64_t capacity = cache[2];
    for (const Input input : {kPastKey, kPastValue}) {
      call.need(kName, input, input == kPastKey ? "past_key" : "past_value", {1, kv_heads, capacity, dim});
    }

    Attention step{};
    step.heads = static_cast<std::size_t>(heads), step.kv_heads = static_cast<std::size_t>(kv_heads);
    step.dim = static_cast<std::size_t>(dim), step.window = static_cast<std::size_t>(window);
    step.scale = scale, step.eps = eps;
    step.rows = static_cast<std::size_t>(qkv[1]), step.capacity = static_cast<std::size_t>(capacity);
    step.position = position(call, qkv[1], capacity);
    step.qkv = ort::data<const float>(call.api, call.input(kQkv));
    tables(call, step);
    step.q_gain = optional(call, kQGain, "q_gain", {dim});
    step.k_gain = optional(call, kKGain, "k_gain", {dim});

    step.mixed = call.output(0, {1, qkv[1], heads * dim});
    step.keys = call.output(1, cache);
    step.values = call.output(2, cache);
    carry_over(step, ort::data<const float>(call.api, call.input(kPastKey)), step.keys);
    carry_over(step, ort::data<const float>(call.api, call.input(kPastValue)), step.values);
    OrtPool pool(call.api, call.context);
    attention(current_path(), step, pool);
  }

  // Of the first row.
  static std::size_t position(const Call& call, std::int64_t rows, std::int64_t capacity) {
    const std::int64_t last = scalar(call, kLast, "seqlens_k"), total = scalar(call, kTotal, "total_sequence_length");
    if (total != last + 1) {
      refuse("total_sequence_length is " + std::to_string(total) + " where seqlens_k is " + std::to_string(last) +
             "; it must be one more.");
    }
    if (last < rows - 1 || last >= capacity) {
      refuse(std::to_string(rows) + " rows ending at position " + std::to_string(last) + " do not fit a cache of " +
             std::to_string(capacity) + " rows.");
    }
    return static_cast<std::size_t>(last - (rows - 1));
  }

  static std::int64_t scalar(const Call& call, Input input, const char* name) {
    call.need(kName, input, name, {1});
    return *ort::data<const std::int32_t>(call.api, call.input(input));
  }

  void tables(const Call& call, Attention& step) const {
    const ort::Value* cos = call.input(kCos);
    if ((cos != nullptr) != rotary || (call.input(kSin) != nullptr) != rotary) {
      refuse(rotary ? "do_rotary is 1, so cos and sin are needed." : "do_rotary is 0, so cos and sin have no use.");
    }
    if (!rotary) return;
    const Shape shape = ort::shape(call.api, cos);
    const std::int64_t positions = shape.empty() ? 0 : shape[0];
    step.cos = optional(call, kCos, "cos", {positions, dim / 2});
    step.sin = optional(call, kSin, "sin", {positions, dim / 2});
    if (static_cast<std::uint64_t>(positions) < step.total()) {
      refuse("cos and sin have " + std::to_string(positions) + " positions; this pass needs " +
             std::to_string(step.total()) + ".");
    }
  }

  static const float* optional(const Call& call, Input input, const char* name, const Shape& shape) {
    if (call.input(input) == nullptr) return nullptr;
    call.need(kName, input, name, shape);
    return ort::data<const float>(call.api, call.input(input));
  }
};

}  // namespace

const ort::CustomOp* grouped_attention_op() { return custom_op<GroupedAttention>(); }

}  // namespace selfspec
