// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The vote of a step's commit: the ballots of all ranks reduced to one, so that every rank draws the same conclusion.
// It is the only communication of a commit.
//
//   auto outcome = std::move(step).commit(belay::world_vote{mesh.control()});
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "belay/comm/communicator.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/rank_comparison.hpp"
#include "belay/step/commit.hpp"

namespace belay::inline BELAY_ABI {

/// Throws usage_error on every rank of the mesh where they have other words for the participants of a step. One small
/// all_reduce.
template <class Mesh>
requires communicator<typename Mesh::control_type>
void expect_agreement(const Mesh& mesh, std::uint64_t participants, where at) {
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

/// The words of a ballot that a vote sums.
[[nodiscard]] constexpr std::array<std::uint64_t, 6> summed_words(const ballot& of) noexcept {
  return {of.open_obligations, of.misused_handles, of.non_finite, of.unwritten, of.unwritable, of.asked_to_stop};
}
/// The ballot of words that a vote has summed, with `rows` rows to make room for, and a loss.
[[nodiscard]] constexpr ballot ballot_of(const std::array<std::uint64_t, 6>& sums, std::uint64_t rows,
                                         double loss) noexcept {
  return {sums[0], sums[1], sums[2], rows, loss, sums[3], sums[4], sums[5]};
}

/// Whether losses of this rank count: the ranks of a tensor axis compute the same ones, and the first counts.
template <class Mesh>
[[nodiscard]] bool counts_losses(const Mesh& mesh) {
  if constexpr (requires { mesh.layout_coordinate().tensor; }) return mesh.layout_coordinate().tensor == 0;
  return true;
}

/// The vote of a commit over a mesh: three small all_reduces over all ranks. Losses are added in rank order. Throws
/// usage_error on every rank where their divisors differ.
template <class Mesh>
requires communicator<typename Mesh::control_type>
[[nodiscard]] ballot vote_over(const Mesh& mesh, const ballot& own, std::uint64_t divisor, where at) {
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

/// Two small all_reduces over the group, when `commit` calls it. All ranks must commit at the same point.
template <communicator Group>
class world_vote {
 public:
  /// Votes over all ranks of that group.
  explicit world_vote(Group group, where at = where::current()) : group_(std::move(group)), at_(at) {}

  /// The ballot of all ranks. Collective.
  [[nodiscard]] ballot operator()(const ballot& own) const {
    auto sums = summed_words(own);
    std::array<std::uint64_t, 1> largest{own.needed_rows};
    group_.all_reduce(std::span<std::uint64_t>(sums), sum, at_);
    group_.all_reduce(std::span<std::uint64_t>(largest), maximum, at_);
    return ballot_of(sums, largest[0], own.loss);
  }

 private:
  Group group_;
  where at_;
};

}  // namespace belay::inline BELAY_ABI
