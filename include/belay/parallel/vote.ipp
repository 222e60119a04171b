// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The words of all ranks of a mesh, compared and summed.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/parallel/rank_comparison.hpp"
#include "belay/parallel/vote.hpp"

namespace belay::inline BELAY_ABI {

/// All ranks of `group`, of which each has chosen for `most` problems or fewer. Collective.
template <class Group>
void expect_same_choices(const Group& group, std::size_t most, kit_choices* chosen, where at) {
  constexpr std::size_t letters = 256;
  const auto find = [&](std::uint64_t problem) { return chosen == nullptr ? nullptr : chosen->find(problem); };
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<std::uint64_t> own(most, rank_comparison::abstains), problems(most * ranks);
  for (std::size_t i = 0; chosen != nullptr && i < chosen->all().size(); ++i) own[i] = chosen->all()[i].problem;
  group.all_gather(std::span<const std::uint64_t>(own), std::span(problems), at);
  std::sort(problems.begin(), problems.end());
  problems.erase(std::unique(problems.begin(), problems.end()), problems.end());
  std::vector<std::uint64_t> ways;
  for (const std::uint64_t each : problems) {
    const kit_choices::choice* const mine = find(each);
    ways.push_back(mine == nullptr ? rank_comparison::abstains : mine->way);
  }
  rank_comparison compared;
  if (!compared.differ(group, ways, at)) {
    if (chosen != nullptr) chosen->note_compared();
    return;
  }
  // Only ranks that have the problem can say it in words.
  std::array<char, letters> text{};
  if (const kit_choices::choice* const mine = find(problems[compared.first()]); mine != nullptr)
    mine->text.copy(text.data(), letters - 1);
  std::vector<char> texts(letters * ranks);
  group.all_gather(std::span<const char>(text), std::span(texts), at);
  std::size_t said = 0;
  while (texts[said] == 0) said += letters;
  throw usage_error(compared.ranks(group) + " compute " + std::string(&texts[said]) +
                        " in different ways: the version of the library that chooses, its settings in the environment "
                        "and the kind of device are the same on all ranks",
                    at);
}

BELAY_DECL order_of_step expect_agreement(const mesh& mesh, std::uint64_t participants, where at, kit_choices* chosen,
                                          order_of_step own) {
  const auto& group = mesh.control();
  if (is_rehearsed(group) || group.size() < 2) return own;
  // A word and its complement: their maxima are complements where all ranks have the same word. Then whether a rank
  // has chosen anew, for how many problems, and whether one abandons its step.
  std::array<std::uint64_t, 5> largest{participants, ~participants, 0, 0, own == order_of_step::abandoned ? 1U : 0U};
  if (chosen != nullptr) largest[2] = chosen->compared() ? 0 : 1, largest[3] = chosen->all().size();
  group.all_reduce(std::span<std::uint64_t>(largest), maximum, at);
  if (largest[0] == ~largest[1]) {
    if (largest[2] != 0) expect_same_choices(group, static_cast<std::size_t>(largest[3]), chosen, at);
    return largest[4] != 0 ? order_of_step::abandoned : order_of_step::executed;
  }
  rank_comparison compared;
  const std::array<std::uint64_t, 1> word{participants};
  static_cast<void>(compared.differ(group, word, at));
  throw usage_error(compared.ranks(group) +
                        " run different steps: the participants, their order, and the arguments with which the "
                        "optimizer was last applied are equal on all ranks",
                    at);
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
