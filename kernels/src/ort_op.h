// What every operator of ours is made of: reading a node's attributes, a call's inputs and outputs, and the table of
// functions that ONNX Runtime wants of a kernel.
#pragma once
#include <limits>

#include "ort_abi.h"
#include "pool.h"

namespace selfspec {

const ort::CustomOp* grouped_attention_op();

namespace {

using ort::Api;
using ort::check;
using ort::Refusal;
using Shape = std::vector<std::int64_t>;

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

  std::int64_t integer(const char* name) const { return attribute<ort::IntAttribute, std::int64_t>(name, "integer"); }
  float number(const char* name) const { return attribute<ort::FloatAttribute, float>(name, "float"); }
  std::int64_t multiple(const char* name, std::size_t of, const char* advice = "") const {
    const std::int64_t value = integer(name);
    if (value <= 0 || value > std::numeric_limits<std::int32_t>::max() || value % static_cast<std::int64_t>(of) != 0) {
      throw Refusal(std::string(op) + ": " + name + " is " + std::to_string(value) + "; it must be " +
                    (of == 1 ? "positive." : "a positive multiple of " + std::to_string(of) + ".") + advice);
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

 private:
  template <class Function, class Value>
  Value attribute(const char* name, const char* kind) const {
    Value value = 0;
    if (ort::Status* status = Function::call(api, info, name, &value)) {
      ort::ReleaseStatus::call(api, status);
      throw Refusal(std::string(op) + " lacks the " + kind + " attribute " + name + ".");
    }
    return value;
  }
};

inline std::string written(const Shape& shape) {
  std::string text;
  for (const std::int64_t d : shape) text += (text.empty() ? "" : ", ") + std::to_string(d);
  return "[" + text + "]";
}

// The inputs and outputs of one call.
struct Call {
  const Api* api;
  ort::KernelContext* context;

  const ort::Value* input(std::size_t index) const {  // nullptr where an optional one is absent
    const ort::Value* value = nullptr;
    check<ort::ContextInput>(api, static_cast<const ort::KernelContext*>(context), index, &value);
    return value;
  }
  template <class T = float>
  T* output(std::size_t index, const Shape& shape) const {
    ort::Value* value = nullptr;
    check<ort::ContextOutput>(api, context, index, shape.data(), shape.size(), &value);
    return ort::data<T>(api, value);
  }
  void need(const char* op, std::size_t index, const char* name, const Shape& shape) const {
    const Shape found = ort::shape(api, input(index));
    if (found == shape) return;
    throw Refusal(std::string(op) + ": " + name + " is " + written(found) + "; " + written(shape) + " is needed.");
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
    o.output_type = [](const ort::CustomOp*, std::size_t i) { return Kernel::kOutputs[i]; };
    o.output_count = [](const ort::CustomOp*) { return std::size(Kernel::kOutputs); };
    o.input_characteristic = [](const ort::CustomOp*, std::size_t i) { return i < Kernel::kRequired ? 0 : 1; };
    o.output_characteristic = [](const ort::CustomOp*, std::size_t) { return 0; };  // required
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

}  // namespace
}  // namespace selfspec
