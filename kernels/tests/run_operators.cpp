// One operator from standard input to standard output, for a processor that is only emulated:
//   run_operators PATH product BITS M K N < (x float32 [M, K], tiles) > y float32 [M, N]
//   run_operators PATH sparse_mlp M K I EXPERTS CHOSEN
//     < (x float32 [M, K], router float32 [EXPERTS, K], 4-bit gate_up, 8-bit down [EXPERTS K, I], gate float32 [K])
//     > (y float32 [M, K], the same of expert 0 alone with the gate, selected int32 [M, CHOSEN])
#include <cstdio>
#include <cstdlib>
#include <string>

#include "../src/sparse_mlp.h"

using namespace selfspec;

struct Alone : Pool {
  void run(std::size_t count, void (*task)(void*, std::size_t), void* user) override {
    for (std::size_t i = 0; i < count; ++i) task(user, i);
  }
};

template <class T>
std::vector<T> read(std::size_t count) {
  std::vector<T> values(count);
  if (std::fread(values.data(), sizeof(T), count, stdin) != count) std::exit(3);
  return values;
}

template <class T>
void write(const std::vector<T>& values) {
  if (std::fwrite(values.data(), sizeof(T), values.size(), stdout) != values.size()) std::exit(4);
}

struct Matrix {
  std::vector<std::uint8_t> bytes;
  Tiles tiles;

  Matrix(std::size_t n, std::size_t k, int bits)
      : bytes(read<std::uint8_t>(n / kTileColumns * (k / kBlock) * block_bytes(bits, true))),
        tiles{bytes.data(), n / kTileColumns, k / kBlock, bits, true} {}
};

void product(const Path& path, const std::vector<std::size_t>& sizes, Pool& pool) {
  const std::size_t m = sizes[1], k = sizes[2], n = sizes[3];
  const auto x = read<float>(m * k);
  const Matrix w(n, k, static_cast<int>(sizes[0]));
  std::vector<float> y(m * n);
  matmul(path, w.tiles, x.data(), m, y.data(), pool);
  write(y);
}

void sparse(const Path& path, const std::vector<std::size_t>& sizes, Pool& pool) {
  const std::size_t m = sizes[0], k = sizes[1], inner = sizes[2], experts = sizes[3], chosen = sizes[4];
  const auto x = read<float>(m * k), router = read<float>(experts * k);
  const Matrix gate_up(2 * experts * inner, k, 4), down(experts * k, inner, 8);
  const auto gate = read<float>(k);
  std::vector<float> y(m * k);
  std::vector<std::int32_t> selected(m * chosen);
  const SparseMLP mlp{router.data(), gate_up.tiles, down.tiles, Activation::kSilu, experts, chosen, true, 1.0f};
  sparse_mlp(path, mlp, x.data(), m, y.data(), selected.data(), chosen, pool);
  write(y);
  gated_mlp(path, gate_up.tiles.part(0, 2 * inner / kTileColumns), down.tiles.part(0, k / kTileColumns), mlp.activation,
            x.data(), m, y.data(), pool);
  sigmoid_gate(path, gate.data(), x.data(), k, m, y.data(), k, pool);
  write(y);
  write(selected);
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const char* differs = self_test();
  const Path* path = find_path(argv[1]);
  if (differs != nullptr || path == nullptr) {
    std::fprintf(stderr, "self-test: %s, path %s: %s\n", differs != nullptr ? differs : "passed", argv[1],
                 path != nullptr ? "usable" : "not usable");
    return 1;
  }
  std::vector<std::size_t> sizes;
  for (int i = 3; i < argc; ++i) sizes.push_back(std::strtoul(argv[i], nullptr, 10));
  Alone alone;
  const std::string name = argv[2];
  if (name == "product" && sizes.size() == 4) {
    product(*path, sizes, alone);
  } else if (name == "sparse_mlp" && sizes.size() == 5) {
    sparse(*path, sizes, alone);
  } else {
    return 2;
  }
  return 0;
}
