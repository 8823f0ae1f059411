// Which paths this processor can run, and which one the operators use.
#include <atomic>
#include <cstring>

#include "matmul.h"

namespace selfspec {
namespace {

std::atomic<const Path*> chosen{nullptr};

std::vector<const Path*> usable_paths() {
  std::vector<const Path*> usable;
  for (const Path* path : compiled_paths()) {
    if (path->usable()) usable.push_back(path);
  }
  return usable;
}

}  // namespace

const std::vector<const Path*>& compiled_paths() {
  static const std::vector<const Path*> best_first = {
#if defined(SELFSPEC_X86)
      &kAvx512Vnni,
#if defined(SELFSPEC_AVXVNNI)
      &kAvxVnni,
#endif
      &kAvx2,
#elif defined(SELFSPEC_ARM64)
      &kNeon,
#endif
      &kScalar,
  };
  return best_first;
}

const std::vector<const Path*>& paths() {
  static const std::vector<const Path*> usable = usable_paths();
  return usable;
}

const Path* find_path(const char* name) {
  for (const Path* path : paths()) {
    if (std::strcmp(path->name, name) == 0) return path;
  }
  return nullptr;
}

const Path& current_path() {
  const Path* path = chosen.load(std::memory_order_relaxed);
  return path != nullptr ? *path : *paths().front();
}

void use_path(const Path& path) { chosen.store(&path, std::memory_order_relaxed); }

}  // namespace selfspec
