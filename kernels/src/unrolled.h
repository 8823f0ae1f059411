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

// x [Count] in one, halves first.
template <int Count, class F>
SELFSPEC_INLINE inline float folded(const float* x, F f) {
  if constexpr (Count == 1) {
    return x[0];
  } else {
    return f(folded<Count / 2>(x, f), folded<Count / 2>(x + Count / 2, f));
  }
}

}  // namespace
}  // namespace selfspec
