// malloc with requests of one size refused, to be preloaded: what happens when memory runs out in a certain place.
#include <atomic>
#include <cstddef>

extern "C" {

void* __libc_malloc(std::size_t size) noexcept;  // glibc's own

static std::atomic<std::size_t> refused_size{0}, largest_size{0};
static std::atomic<int> spared{0}, refused{0};

// From now on requests of `size` bytes are refused, but for the first `spare`; 0 refuses none.
void scarce_refuse(std::size_t size, int spare) {
  spared = spare;
  refused = 0;
  largest_size = 0;
  refused_size = size;
}

// Since then:
int scarce_refused() { return refused; }
std::size_t scarce_largest() { return largest_size; }

void* malloc(std::size_t size) noexcept {
  for (std::size_t known = largest_size; size > known && !largest_size.compare_exchange_weak(known, size);) {
  }
  if (size != 0 && size == refused_size && spared-- <= 0) {
    ++refused;
    return nullptr;
  }
  return __libc_malloc(size);
}
}
