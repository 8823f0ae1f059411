// The slice of ONNX Runtime's C interface that a custom operator needs, declared here because its Python wheel has no
// headers. OrtApi is a table of functions that is only ever appended to, so a function is its place in the table; the
// table is asked for by version (17 is the oldest that has every place below, 1.17 the oldest release).
// OrtCustomOp is read up to the version it states: 16, the first whose two entries may return an error.
#pragma once
#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

namespace selfspec::ort {

constexpr std::uint32_t kApiVersion = 17;
constexpr std::uint32_t kCustomOpVersion = 16;

struct Api;
struct Status;
struct Value;
struct ShapeInfo;
struct KernelInfo;
struct KernelContext;
struct SessionOptions;
struct Domain;

enum ElementType : int { kFloat = 1, kUint8 = 2, kInt32 = 6, kInt64 = 7 };
enum ErrorCode : int { kFail = 1, kInvalidArgument = 2 };

struct ApiBase {
  const Api* (*get_api)(std::uint32_t version);
  const char* (*get_version)();
};

struct CustomOp {
  std::uint32_t version;
  void* (*create_kernel)(const CustomOp*, const Api*, const KernelInfo*);  // unused: create_kernel_v2 is there
  const char* (*name)(const CustomOp*);
  const char* (*provider)(const CustomOp*);
  ElementType (*input_type)(const CustomOp*, std::size_t);
  std::size_t (*input_count)(const CustomOp*);
  ElementType (*output_type)(const CustomOp*, std::size_t);
  std::size_t (*output_count)(const CustomOp*);
  void (*compute)(void*, KernelContext*);  // unused: compute_v2 is there
  void (*destroy)(void*);
  int (*input_characteristic)(const CustomOp*, std::size_t);
  int (*output_characteristic)(const CustomOp*, std::size_t);
  int (*input_memory)(const CustomOp*, std::size_t);
  int (*variadic_input_arity)(const CustomOp*);
  int (*variadic_input_homogeneity)(const CustomOp*);
  int (*variadic_output_arity)(const CustomOp*);
  int (*variadic_output_homogeneity)(const CustomOp*);
  Status* (*create_kernel_v2)(const CustomOp*, const Api*, const KernelInfo*, void** kernel);
  Status* (*compute_v2)(void*, KernelContext*);
};

// A place in the table and the type of the function there.
template <std::size_t Index, class Signature>
struct Entry;
template <std::size_t Index, class Result, class... Arguments>
struct Entry<Index, Result(Arguments...)> {
  static Result call(const Api* api, Arguments... arguments) {
    const auto* table = reinterpret_cast<void* const*>(api);
    return reinterpret_cast<Result (*)(Arguments...)>(table[Index])(arguments...);
  }
};

using CreateStatus = Entry<0, Status*(int, const char*)>;
using CreateDomain = Entry<26, Status*(const char*, Domain**)>;
using AddToDomain = Entry<27, Status*(Domain*, const CustomOp*)>;
using AddDomain = Entry<28, Status*(SessionOptions*, Domain*)>;
using TensorData = Entry<51, Status*(Value*, void**)>;
using DimensionCount = Entry<61, Status*(const ShapeInfo*, std::size_t*)>;
using Dimensions = Entry<62, Status*(const ShapeInfo*, std::int64_t*, std::size_t)>;
using TensorShape = Entry<65, Status*(const Value*, ShapeInfo**)>;
using FloatAttribute = Entry<85, Status*(const KernelInfo*, const char*, float*)>;
using IntAttribute = Entry<86, Status*(const KernelInfo*, const char*, std::int64_t*)>;
using StringAttribute = Entry<87, Status*(const KernelInfo*, const char*, char*, std::size_t*)>;
using ContextInput = Entry<90, Status*(const KernelContext*, std::size_t, const Value**)>;
using ContextOutput = Entry<91, Status*(KernelContext*, std::size_t, const std::int64_t*, std::size_t, Value**)>;
using ReleaseStatus = Entry<93, void(Status*)>;
using ReleaseShape = Entry<99, void(ShapeInfo*)>;
using ConstantInput = Entry<249, Status*(const KernelInfo*, std::size_t, int*, const Value**)>;
using ParallelFor =
    Entry<274, Status*(const KernelContext*, void (*)(void*, std::size_t), std::size_t, std::size_t, void*)>;

// A status of ONNX Runtime's own, carried up to the entry that returns it.
struct Failure {
  Status* status;
};

constexpr const char* kOutOfMemory =
    "selfspec's kernels are out of memory: free some, or run fewer tokens or conversations at once.";

// A sentence of ours.
struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class Function, class... Arguments>
void check(const Api* api, Arguments... arguments) {
  if (Status* status = Function::call(api, arguments...)) throw Failure{status};
}

inline std::vector<std::int64_t> shape(const Api* api, const Value* value) {
  ShapeInfo* info = nullptr;
  check<TensorShape>(api, value, &info);
  struct Release {
    const Api* api;
    ShapeInfo* info;
    ~Release() { ReleaseShape::call(api, info); }
  } release{api, info};
  std::size_t rank = 0;
  check<DimensionCount>(api, static_cast<const ShapeInfo*>(info), &rank);
  std::vector<std::int64_t> dimensions(rank);
  check<Dimensions>(api, static_cast<const ShapeInfo*>(info), dimensions.data(), rank);
  return dimensions;
}

template <class T>
T* data(const Api* api, const Value* value) {  // the table has no const variant this old; inputs are only read
  void* bytes = nullptr;
  check<TensorData>(api, const_cast<Value*>(value), &bytes);
  return static_cast<T*>(bytes);
}

// Runs what may throw and turns it into the status ONNX Runtime expects.
template <class Body>
Status* guarded(const Api* api, Body body) {
  try {
    body();
    return nullptr;
  } catch (const Failure& failure) {
    return failure.status;
  } catch (const Refusal& refusal) {
    return CreateStatus::call(api, kInvalidArgument, refusal.what());
  } catch (const std::bad_alloc&) {
    return CreateStatus::call(api, kFail, kOutOfMemory);
  } catch (const std::exception& error) {
    return CreateStatus::call(api, kFail, error.what());
  }
}

}  // namespace selfspec::ort
