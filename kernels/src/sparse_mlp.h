// A sparse MLP: many small gated MLPs, the experts, of which a router chooses a few for each row.
//
//   logit[e]  = x . router[e] (inner_products.h)
//   chosen    = the experts of the largest logits, the lower index first among equals. NaN is above every number: it is
//               chosen, and so it shows in y.
//   weight[e] = exp(logit[e] - largest) / sum, times scale; the sum is over all experts, or over the chosen ones
//   y         = sum over the chosen experts, by ascending index, of weight[e] * expert e's gated MLP of x
//
// Softmax over all experts whose chosen values are then divided by their sum is the sum over the chosen ones.
// All of it is of one row; rows only share the reading of an expert that several of them chose.
#pragma once
#include "matmul.h"

namespace selfspec {

struct SparseMLP {
  const float* router;  // [experts, K]
  Tiles gate_up, down;  // expert after expert: gate's columns and then up's, K deep; N columns, I deep
  Activation activation;
  std::size_t experts, chosen;  // chosen: of a row, 1 to experts
  bool sum_over_all;
  float scale;
};

// y [rows, N]; selected [rows, places]: each row's chosen experts by falling weight, then -1.
void sparse_mlp(const Path& path, const SparseMLP& mlp, const float* x, std::size_t rows, float* y,
                std::int32_t* selected, std::size_t places, Pool& pool);

// y[r] *= sigmoid(x[r] . gate): the gate of a shared expert, x [rows, depth], y [rows, columns].
void sigmoid_gate(const Path& path, const float* gate, const float* x, std::size_t depth, std::size_t rows, float* y,
                  std::size_t columns, Pool& pool);

}  // namespace selfspec
