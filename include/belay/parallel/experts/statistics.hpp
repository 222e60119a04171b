// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the experts of one stage did in one step, per layer and micro-batch: the selections of every expert by all
// ranks, and the sums of this rank's probabilities. The sums are reduced over the expert group in place, once at the
// end of the step and not once per layer: they are only reported, and the gradient of the load-balancing loss needs no
// communication. Memory is allocated once, or the caller's: kernels of a device record in memory of the device, of
// which the host reads a copy. Recording assigns, so that a forward that is run again changes nothing.
// IWYU pragma: private, include "belay/parallel/experts.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/kernel/reduce.hpp"
#include "belay/kernel/team.hpp"
#include "belay/parallel/routing.hpp"

namespace belay::inline BELAY_ABI {

/// Records a routing, an expert by a team: its selections, and the sum of its probabilities in the sixteen lanes of a
/// sum over rows.
template <class T>
struct recorded_routing {
  /// Selections of each expert and probabilities [rows, experts], and the entries to write.
  const std::int64_t* counts;
  const T* probabilities;
  std::size_t rows;
  std::size_t experts;
  std::int64_t* selections;
  double* sums;
  // Of row i.
  struct probability {
    const T* of;
    std::size_t experts;
    BELAY_HD constexpr double operator()(std::size_t i) const noexcept { return static_cast<double>(of[i * experts]); }
  };
  /// Expert e.
  template <kernel::team Team>
  BELAY_HD void operator()(const Team& team, std::size_t e) const noexcept {
    const double total = kernel::sum_in_lanes<double>(team, probability{probabilities + e, experts}, rows);
    if (team.lane != 0) return;
    selections[e] = counts[e];
    sums[e] = total;
  }
};

class expert_statistics {
 public:
  expert_statistics() = default;
  expert_statistics(std::size_t layers, std::size_t micro_batches, std::size_t experts, std::size_t k,
                    where at = where::current())
      : layers_(layers),
        micro_batches_(micro_batches),
        experts_(experts),
        k_(k),
        own_selections_(entries(layers, micro_batches, experts, at)),
        own_sums_(own_selections_.size()),
        selections_(own_selections_),
        probability_sums_(own_sums_) {}
  /// Statistics over memory of the caller, `layers` x `micro_batches` x `experts` entries each, that outlives them.
  /// Throws usage_error where it has another size.
  expert_statistics(std::size_t layers, std::size_t micro_batches, std::size_t experts, std::size_t k,
                    std::span<std::int64_t> selections, std::span<double> probability_sums,
                    where at = where::current());
  expert_statistics(expert_statistics&&) noexcept = default;  // vectors keep their memory
  expert_statistics& operator=(expert_statistics&&) noexcept = default;

  [[nodiscard]] std::size_t layers() const noexcept { return layers_; }
  [[nodiscard]] std::size_t micro_batches() const noexcept { return micro_batches_; }
  [[nodiscard]] std::size_t experts() const noexcept { return experts_; }

  /// Zeroes all entries, at the beginning of a step; not those of a caller's memory, which may be a device's.
  void clear() noexcept;

  /// Assigns the entry of a dispatched routing. Throws `usage_error` beyond the prepared sizes.
  template <class T>
  void record(std::size_t layer, std::size_t micro_batch, const routing<T>& routed, where at = where::current()) {
    kernel::for_each_row(experts_, recorder(entry(layer, micro_batch, at), routed));
  }

  /// Assigns the entry of a dispatched routing by a kernel of the frame's device, a team an expert; nothing where the
  /// memory is not the caller's. Throws `usage_error` beyond the prepared sizes.
  template <class Frame, class T>
  void record_in(Frame& frame, std::size_t layer, std::size_t micro_batch, const routing<T>& routed,
                 where at = where::current()) const {
    const std::size_t first = entry(layer, micro_batch, at);
    if (own_selections_.empty()) frame.teams(experts_, recorder(first, routed));
  }

  /// [layers, micro_batches, experts]: selections by all ranks of the expert group.
  [[nodiscard]] std::span<const std::int64_t> selections() const noexcept { return selections_; }

  /// [layers, micro_batches, experts]: sums over this rank's rows. Before `balance` the caller all-reduces the span
  /// over the expert group.
  [[nodiscard]] std::span<double> probability_sums() noexcept { return probability_sums_; }
  [[nodiscard]] std::span<const double> probability_sums() const noexcept { return probability_sums_; }

  /// Tokens of one layer and micro-batch over the expert group.
  [[nodiscard]] double rows(std::size_t layer, std::size_t micro_batch, where at = where::current()) const;

  /// The load-balancing term of one layer and micro-batch, from reduced sums; k where the load is balanced.
  [[nodiscard]] double balance(std::size_t layer, std::size_t micro_batch, where at = where::current()) const;

  /// Adds the selections of every expert in `layer`, over all recorded micro-batches, to `tokens` [experts].
  void add_expert_tokens(std::size_t layer, std::span<std::int64_t> tokens, where at = where::current()) const;

 private:
  template <class T>
  [[nodiscard]] recorded_routing<T> recorder(std::size_t first, const routing<T>& routed) const noexcept {
    return {routed.global_counts.data(), routed.probabilities.data(),     routed.rows, experts_,
            selections_.data() + first,  probability_sums_.data() + first};
  }
  [[nodiscard]] static std::size_t entries(std::size_t layers, std::size_t micro_batches, std::size_t experts,
                                           where at);

  [[nodiscard]] std::size_t entry(std::size_t layer, std::size_t micro_batch, where at) const;

  std::size_t layers_ = 0;
  std::size_t micro_batches_ = 0;
  std::size_t experts_ = 0;
  std::size_t k_ = 1;
  std::vector<std::int64_t> own_selections_;
  std::vector<double> own_sums_;
  std::span<std::int64_t> selections_;
  std::span<double> probability_sums_;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/parallel/experts/statistics.ipp"  // IWYU pragma: export
#endif
