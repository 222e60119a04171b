// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// When ranks came to the communications of a step, and who came last: the one that the others waited for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "belay/core/span_log.hpp"
#include "belay/report/page.hpp"

namespace train_moe {

class arrivals {
 public:
  static constexpr std::size_t numbers = 3;  // of a call: of which operation and group, when it began, its operation

  arrivals() = default;
  /// Of the first `calls` communications of each of `ranks` ranks: numbers[rank][call][3], which is zero where there is
  /// no call. `all` outlives it.
  arrivals(std::size_t ranks, std::size_t calls, std::span<double> all) : ranks_(ranks), calls_(calls), all_(all) {}
  /// Memory for `match`, of which there is one.
  void make_room();

  /// Writes what a rank has done into its place.
  void note(std::span<const belay::traced_span> spans, std::size_t rank);
  /// Finds the calls that belong together, of all ranks. Allocates nothing.
  void match();
  /// By kind of communication, that with most waiting first. Valid until the next match.
  [[nodiscard]] std::span<const belay::report_wait> waits() const noexcept { return waits_; }

 private:
  static constexpr std::size_t most_kinds = 32;

  struct call {
    double which = 0;
    std::size_t number = 0;  // of its rank; then of those calls alone
    std::size_t rank = 0;
    double begin = 0;
    std::size_t kind = 0;
  };
  struct last_arrivals {
    std::uint64_t calls = 0;
    double seconds = 0;  // that others waited
  };

  void add(std::span<const call> together);

  std::size_t ranks_ = 0, calls_ = 0;
  std::span<double> all_;
  std::vector<call> order_;
  std::array<std::uint64_t, most_kinds> counts_{};  // of calls, by kind
  std::vector<last_arrivals> last_;                 // [kind][rank]
  std::vector<double> seconds_;                     // [kind][rank]
  std::vector<belay::report_wait> waits_;
};

}  // namespace train_moe
