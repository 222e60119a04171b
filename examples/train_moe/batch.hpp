// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The source of a step's sequences. They are numbered by step, micro-batch and sequence of the global batch, so the
// data does not depend on the mesh.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "model/cross_entropy.hpp"

namespace train_moe {

class batch_source {
 public:
  /// Fills one sequence: `tokens` and, for every position, the token to predict or `model::ignored`.
  /// `step` counts from 1, the others from 0 over the global batch. Allocates nothing.
  virtual void sequence(std::size_t step, std::size_t micro_batch, std::size_t index, std::span<std::int32_t> tokens,
                        std::span<std::int32_t> targets) const = 0;

 protected:
  ~batch_source() = default;
};

/// Every position predicts the next token; the last predicts nothing.
inline void next_token_targets(std::span<const std::int32_t> tokens, std::span<std::int32_t> targets) {
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) targets[i] = tokens[i + 1];
  if (!targets.empty()) targets.back() = model::ignored;
}

}  // namespace train_moe
