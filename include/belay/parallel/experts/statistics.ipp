// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Statistics of experts as they are read after a step.
#pragma once

#include <string>

#include "belay/core/checked_size.hpp"
#include "belay/core/error.hpp"
#include "belay/parallel/experts/statistics.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL expert_statistics::expert_statistics(std::size_t layers, std::size_t micro_batches, std::size_t experts,
                                                std::size_t k, std::span<std::int64_t> selections,
                                                std::span<double> probability_sums, where at)
    : layers_(layers),
      micro_batches_(micro_batches),
      experts_(experts),
      k_(k),
      selections_(selections),
      probability_sums_(probability_sums) {
  if (const std::size_t needed = entries(layers, micro_batches, experts, at);
      selections.size() != needed || probability_sums.size() != needed)
    throw usage_error("expert statistics of " + std::to_string(needed) + " entries are given memory for " +
                          std::to_string(selections.size()) + " and " + std::to_string(probability_sums.size()),
                      at);
}

BELAY_DECL void expert_statistics::clear() noexcept {
  for (std::int64_t& count : own_selections_) count = 0;
  for (double& total : own_sums_) total = 0;
}

BELAY_DECL double expert_statistics::rows(std::size_t layer, std::size_t micro_batch, where at) const {
  const std::size_t first = entry(layer, micro_batch, at);
  std::int64_t total = 0;
  for (std::size_t e = 0; e < experts_; ++e) total += selections_[first + e];
  return static_cast<double>(total) / static_cast<double>(k_);
}

BELAY_DECL double expert_statistics::balance(std::size_t layer, std::size_t micro_batch, where at) const {
  const std::size_t first = entry(layer, micro_batch, at);
  return balance_loss(selections_.data() + first, probability_sums_.data() + first, experts_,
                      rows(layer, micro_batch, at));
}

BELAY_DECL void expert_statistics::add_expert_tokens(std::size_t layer, std::span<std::int64_t> tokens,
                                                     where at) const {
  if (tokens.size() != experts_) throw usage_error("expert tokens: one count for each expert", at);
  for (std::size_t m = 0; m < micro_batches_; ++m) {
    const std::size_t first = entry(layer, m, at);
    for (std::size_t e = 0; e < experts_; ++e) tokens[e] += selections_[first + e];
  }
}

BELAY_DECL std::size_t expert_statistics::entries(std::size_t layers, std::size_t micro_batches, std::size_t experts,
                                                  where at) {
  const auto words = [&] {
    return "statistics of " + std::to_string(layers) + " layers, " + std::to_string(micro_batches) +
           " micro-batches and " + std::to_string(experts) + " experts are";
  };
  return (checked_size(layers) * micro_batches * experts * sizeof(double)).value(words, at) / sizeof(double);
}

BELAY_DECL std::size_t expert_statistics::entry(std::size_t layer, std::size_t micro_batch, where at) const {
  if (layer >= layers_ || micro_batch >= micro_batches_) {
    throw usage_error("expert statistics were prepared for " + std::to_string(layers_) + " layers and " +
                          std::to_string(micro_batches_) + " micro-batches, asked for layer " + std::to_string(layer) +
                          ", micro-batch " + std::to_string(micro_batch),
                      at);
  }
  return (layer * micro_batches_ + micro_batch) * experts_;
}

}  // namespace belay::inline BELAY_ABI
