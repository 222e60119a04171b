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
#include "belay/comm/mesh.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/kit.hpp"
#include "belay/step/commit.hpp"
#include "belay/step/participant.hpp"

namespace belay::inline BELAY_ABI {

/// Throws usage_error on every rank of the mesh where they have other words for the participants of a step, or where
/// libraries have `chosen` other ways for one problem; null: of a rank without such. Returns how all end the step:
/// abandoned, where a rank's `own` order says so. One small all_reduce, and two all_gathers where a rank has chosen
/// anew.
BELAY_DECL order_of_step expect_agreement(const mesh& mesh, std::uint64_t participants, where at,
                                          kit_choices* chosen = nullptr, order_of_step own = order_of_step::executed);

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
[[nodiscard]] inline bool counts_losses(const mesh& mesh) noexcept { return mesh.layout_coordinate().tensor == 0; }

/// The vote of a commit over a mesh: three small all_reduces over all ranks. Losses are added in rank order. Throws
/// usage_error on every rank where their divisors differ.
[[nodiscard]] BELAY_DECL ballot vote_over(const mesh& mesh, const ballot& own, std::uint64_t divisor, where at);

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

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/parallel/vote.ipp"  // IWYU pragma: export
#endif
