// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The words of all ranks of a mesh, compared and summed.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "belay/core/error.hpp"
#include "belay/parallel/rank_comparison.hpp"
#include "belay/parallel/vote.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL void expect_agreement(const mesh& mesh, std::uint64_t participants, where at) {
  if (!is_rehearsed(mesh.control())) {
    const auto& group = mesh.control();
    if (group.size() < 2) return;
    // A word and its complement: their maxima are complements where all ranks have the same word.
    std::array<std::uint64_t, 2> largest{participants, ~participants};
    group.all_reduce(std::span<std::uint64_t>(largest), maximum, at);
    if (largest[0] == ~largest[1]) return;
    rank_comparison compared;
    const std::array<std::uint64_t, 1> own{participants};
    static_cast<void>(compared.differ(group, own, at));
    throw usage_error(compared.ranks(group) +
                          " run different steps: the participants, their order, and the arguments with which the "
                          "optimizer was last applied are equal on all ranks",
                      at);
  }
}

BELAY_DECL ballot vote_over(const mesh& mesh, const ballot& own, std::uint64_t divisor, where at) {
  const auto& group = mesh.control();
  if (group.size() < 2) return own;
  auto sums = summed_words(own);
  std::array<double, 1> loss{counts_losses(mesh) ? own.loss : 0};
  const bool abstains = divisor == no_divisor;
  std::array<std::uint64_t, 3> largest{own.needed_rows, abstains ? 0 : divisor, abstains ? 0 : ~divisor};
  group.all_reduce(std::span<std::uint64_t>(sums), sum, at);
  group.all_reduce(std::span<std::uint64_t>(largest), maximum, at);
  group.all_reduce(std::span<double>(loss), sum, at);
  if (!is_rehearsed(group)) {
    if (largest[1] != ~largest[2] && (largest[1] | largest[2]) != 0) {
      rank_comparison compared;
      const std::array<std::uint64_t, 1> words{divisor};
      static_cast<void>(compared.differ(group, words, at));
      throw usage_error("the divisors of the step differ between ranks (" + compared.text(group) +
                            "): samples and target_tokens are those of the whole global batch, equal on all ranks; "
                            "local_targets{n} are summed",
                        at);
    }
  }
  return ballot_of(sums, largest[0], loss[0]);
}

}  // namespace belay::inline BELAY_ABI
