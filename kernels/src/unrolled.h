// f(0), ..., f(Count - 1) with constants: an array indexed by them lives in registers. GCC unrolls a loop too late for
// that and leaves the running sums in memory.
#pragma once
#include <utility>

#define SELFSPEC_INLINE __attribute__((always_inline))

namespace selfspec {
namespace {

template <class F, int... I>
SELFSPEC_INLINE inline void unrolled(std::integer_sequence<int, I...>, F f) {
  (f(std::integral_constant<int, I>{}), ...);
}
template <int Count, class F>
SELFSPEC_INLINE inline void unrolled(F f) {
  unrolled(std::make_integer_sequence<int, Count>{}, f);
}

}  // namespace
}  // namespace selfspec
