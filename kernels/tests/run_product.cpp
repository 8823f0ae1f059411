// One product from standard input to standard output, for a processor that is only emulated:
//   run_product PATH BITS M K N < (x float32 [M, K], tiles) > y float32 [M, N]
#include <cstdio>
#include <cstdlib>

#include "../src/matmul.h"

using namespace selfspec;

struct Alone : Pool {
  void run(std::size_t count, void (*task)(void*, std::size_t), void* user) override {
    for (std::size_t i = 0; i < count; ++i) task(user, i);
  }
};

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const char* differs = self_test();
  const Path* path = find_path(argv[1]);
  if (differs != nullptr || path == nullptr) {
    std::fprintf(stderr, "self-test: %s, path %s: %s\n", differs != nullptr ? differs : "passed", argv[1],
                 path != nullptr ? "usable" : "not usable");
    return 1;
  }
  const int bits = std::atoi(argv[2]);
  const std::size_t m = std::strtoul(argv[3], nullptr, 10), k = std::strtoul(argv[4], nullptr, 10),
                    n = std::strtoul(argv[5], nullptr, 10);
  std::vector<float> x(m * k), y(m * n);
  std::vector<std::uint8_t> bytes(n / kTileColumns * (k / kBlock) * block_bytes(bits, true));
  if (std::fread(x.data(), 4, x.size(), stdin) != x.size()) return 3;
  if (std::fread(bytes.data(), 1, bytes.size(), stdin) != bytes.size()) return 3;
  Alone alone;
  matmul(*path, Tiles{bytes.data(), n / kTileColumns, k / kBlock, bits, true}, x.data(), m, y.data(), alone);
  return std::fwrite(y.data(), 4, y.size(), stdout) == y.size() ? 0 : 4;
}
