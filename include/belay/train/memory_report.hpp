// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What every rank has leased, on all ranks: for the line of a step.
//
//   belay::memory_report memory{run, mesh};
//   ...                                            // after a step
//   memory.gather(run, mesh);
//   const auto largest = std::ranges::max(memory.peak(belay::tier::device));   // bytes, as planned
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>

#include "belay/comm/mesh.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/tier.hpp"

namespace belay::inline BELAY_ABI {

/// Numbers of every rank, in rank order. Its memory is the run's, in the row "report" of the plan; it allocates
/// nothing.
class memory_report {
 public:
  /// Leases the memory; `gather` fills it.
  template <class Run>
  memory_report(Run& run, const mesh& mesh, where at = where::current())
      : ranks_(static_cast<std::size_t>(mesh.shape().ranks())),
        all_(run.template lease<std::uint64_t>(tier::host, kinds * tier_count * ranks_ + ranks_, "report", at)) {}

  /// Puts in what this rank has leased, and gets the others'. Collective over the mesh: one sum.
  template <class Run>
  void gather(const Run& run, const mesh& mesh, where at = where::current()) {
    if (!run.rehearsing()) {
      std::fill(all_.begin(), all_.end(), std::uint64_t{0});
      const auto own = static_cast<std::size_t>(mesh.control().rank());
      for (std::size_t number = 0; number < tier_count; ++number) {
        const tier of = static_cast<tier>(number);
        const tier_meter& meter = run.meters()[of];
        row(is_live, of)[own] = meter.live_bytes();
        row(is_peak, of)[own] = meter.peak_bytes();
        row(is_planned, of)[own] = run.planned().peak_bytes(of);
        row(is_allocations, of)[own] = meter.allocations();
      }
      open()[own] = run.engine().obligations().open_count();
    }
    mesh.control().all_reduce(all_, sum, at);
  }

  /// Bytes by rank: leased now; the most at once so far; the most according to the plan.
  [[nodiscard]] std::span<const std::uint64_t> live(tier of) const noexcept { return row(is_live, of); }
  [[nodiscard]] std::span<const std::uint64_t> peak(tier of) const noexcept { return row(is_peak, of); }
  [[nodiscard]] std::span<const std::uint64_t> planned(tier of) const noexcept { return row(is_planned, of); }
  /// Over all ranks: regions of a tier that were allocated so far, and obligations that are open.
  [[nodiscard]] std::uint64_t allocations(tier of) const noexcept { return total(row(is_allocations, of)); }
  [[nodiscard]] std::uint64_t open_obligations() const noexcept { return total(open()); }

 private:
  enum row_kind : std::size_t { is_live, is_peak, is_planned, is_allocations, kinds };

  [[nodiscard]] std::span<std::uint64_t> row(row_kind what, tier of) const noexcept {
    return all_.subspan((what * tier_count + static_cast<std::size_t>(of)) * ranks_, ranks_);
  }
  [[nodiscard]] std::span<std::uint64_t> open() const noexcept { return all_.last(ranks_); }
  [[nodiscard]] static std::uint64_t total(std::span<const std::uint64_t> of) noexcept {
    return std::accumulate(of.begin(), of.end(), std::uint64_t{0});
  }

  std::size_t ranks_;
  std::span<std::uint64_t> all_;
};

}  // namespace belay::inline BELAY_ABI
