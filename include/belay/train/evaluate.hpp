// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Evaluation on all ranks of a run: forwards that owe nothing, their losses summed, and room for experts that had too
// little.
//
//   if (run.every(100, number)) {
//     const auto held_out = belay::evaluate(run, mesh, [&] {
//       belay::forward_only pass{run.engine(), experts};
//       auto logits = belay::observe(pass, net, tokens);
//       belay::cross_entropy(pass, logits.out(), targets);
//     });
//     run.report(held_out, [&](double mean) { std::printf("held out: %.4f\n", mean); });
//   }
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "belay/comm/communicator.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/vote.hpp"
#include "belay/step/forward_only.hpp"

namespace belay::inline BELAY_ABI {

/// The losses of an evaluation over all ranks, in which nothing overflowed. The same on every rank.
struct evaluation {
  double loss = 0;          // summed
  std::uint64_t count = 0;  // of targets or samples

  /// The loss of one target or sample; 0 where there was none.
  [[nodiscard]] double mean_loss() const noexcept { return count == 0 ? 0.0 : loss / static_cast<double>(count); }
};

/// Runs `body()`, which makes forward-only passes, on every rank; where one of any rank overflowed, all run it again
/// with more room. Losses are added in rank order. Collective over the mesh, between steps. Throws open_obligations
/// where a layer has left some open, usage_error for an index that is none, and what `body` throws.
template <class Run, std::invocable Body>
[[nodiscard]] evaluation evaluate(Run& run, const mesh& mesh, Body&& body, where at = where::current()) {
  const auto& ranks = mesh.control();
  for (;;) {
    static_cast<void>(run.engine().take_pass_findings());
    body();
    const pass_findings own = run.engine().take_pass_findings();
    if (own.open_obligations > 0)
      throw open_obligations("forward-only passes left what is printed above\n",
                             static_cast<std::size_t>(own.open_obligations), at);
    run.engine().expect_right(own.wrong, own.first_wrong);
    std::array<std::uint64_t, 1> rows{own.needed_rows};
    std::array<double, 2> sums{};
    if (counts_losses(mesh)) sums = {own.loss, static_cast<double>(own.count)};
    if (ranks.size() > 1) {
      ranks.all_reduce(std::span<std::uint64_t>(rows), maximum, at);
      ranks.all_reduce(std::span<double>(sums), sum, at);
    }
    if (rows[0] == 0) return {sums[0], static_cast<std::uint64_t>(sums[1])};
    run.make_room(rows[0], at);
  }
}

}  // namespace belay::inline BELAY_ABI
