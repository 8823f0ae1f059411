// Plain C entries, for tests, benchmarks and Python's ctypes; no ONNX Runtime involved.
// Those that can refuse return nullptr when all went well and otherwise a sentence, valid until the next call of the
// same thread.
#include <atomic>
#include <new>
#include <string>
#include <thread>

#include "export.h"
#include "matmul.h"

namespace selfspec {
namespace {

struct Threads : Pool {
  explicit Threads(std::size_t count) : count(count) {}
  std::size_t count;

  void run(std::size_t tasks, void (*task)(void*, std::size_t), void* user) override {
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
      for (std::size_t i = next++; i < tasks; i = next++) task(user, i);
    };
    struct Workers : std::vector<std::thread> {
      ~Workers() {  // also where the next one could not be started
        for (auto& worker : *this) worker.join();
      }
    } workers;
    for (std::size_t i = 1; i < count; ++i) workers.emplace_back(work);
    work();
  }
};

const char* refuse(std::string sentence) {
  thread_local std::string last;
  last = std::move(sentence);
  return last.c_str();
}

std::string joined(const std::vector<const Path*>& paths) {
  std::string names;
  for (const Path* path : paths) names += (names.empty() ? "" : ",") + std::string(path->name);
  return names;
}

const char* wrong_shape(int bits, std::uint64_t k, std::uint64_t n, std::uint64_t bytes) {
  if (bits != 4 && bits != 8) return refuse("Weights of " + std::to_string(bits) + " bits; 4 and 8 are known.");
  if (k == 0 || k % kBlock != 0) return refuse("K is " + std::to_string(k) + "; it must be a multiple of 32.");
  if (n == 0 || n % kTileColumns != 0) return refuse("N is " + std::to_string(n) + "; it must be a multiple of 8.");
  const std::uint64_t blocks = n / kTileColumns * (k / kBlock);
  if (bytes == blocks * block_bytes(bits, true) || bytes == blocks * block_bytes(bits, false)) return nullptr;
  return refuse("The tiles have " + std::to_string(bytes) + " bytes; K=" + std::to_string(k) + ", N=" +
                std::to_string(n) + " at " + std::to_string(bits) + " bits take " +
                std::to_string(blocks * block_bytes(bits, true)) + ", or " +
                std::to_string(blocks * block_bytes(bits, false)) + " without minima.");
}

}  // namespace
}  // namespace selfspec

using namespace selfspec;

extern "C" {

// The paths this library was built with, best first, separated by commas.
SELFSPEC_EXPORT const char* selfspec_compiled_paths() {
  static const std::string names = joined(compiled_paths());
  return names.c_str();
}

// Those of them that this processor can run.
SELFSPEC_EXPORT const char* selfspec_paths() {
  static const std::string names = joined(paths());
  return names.c_str();
}

// The path the operators use from now on.
SELFSPEC_EXPORT const char* selfspec_use_path(const char* name) {
  const Path* path = find_path(name);
  if (path == nullptr) return refuse("No path '" + std::string(name) + "' here; usable are " + selfspec_paths() + ".");
  use_path(*path);
  return nullptr;
}

SELFSPEC_EXPORT const char* selfspec_current_path() { return current_path().name; }

// nullptr, or the name of a path whose results differ from the scalar path's.
SELFSPEC_EXPORT const char* selfspec_self_test() { return self_test(); }

// y [M, N] = x [M, K] times the tiles.
SELFSPEC_EXPORT const char* selfspec_matmul(const char* path_name, int bits, const float* x, std::uint64_t m,
                                            std::uint64_t k, const std::uint8_t* tiles, std::uint64_t tile_bytes,
                                            std::uint64_t n, float* y, int threads) {
  const Path* path = find_path(path_name);
  if (path == nullptr) {
    return refuse("No path '" + std::string(path_name) + "' here; usable are " + selfspec_paths() + ".");
  }
  if (const char* wrong = wrong_shape(bits, k, n, tile_bytes)) return wrong;
  if (threads < 1) return refuse("Threads are " + std::to_string(threads) + "; at least 1 is needed.");
  Threads pool(static_cast<std::size_t>(threads));
  const bool minima = tile_bytes == n / kTileColumns * (k / kBlock) * block_bytes(bits, true);
  try {
    matmul(*path, Tiles{tiles, n / kTileColumns, k / kBlock, bits, minima}, x, m, y, pool);
    return nullptr;
  } catch (const std::bad_alloc&) {
    return "Out of memory; multiply fewer rows at once.";
  } catch (const std::exception& error) {  // a thread that cannot be started
    return refuse(error.what());
  }
}
}
