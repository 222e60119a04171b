// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How the ranks of a group come to run one variant: the first rank names it in its call descriptor and, while it tries
// variants, takes the time.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "belay/backend/host/rendezvous/call_descriptor.hpp"
#include "belay/backend/host/tuning/algorithm_rules.hpp"
#include "belay/backend/host/tuning/online_tuner.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Calls that share a variant: the call as its descriptor's `head` tells it, and its class of size.
[[nodiscard]] inline std::uint64_t tuning_kind(std::uint64_t head, std::size_t bytes) noexcept {
  const std::uint64_t buffers =
      head & (call_descriptor::loads_and_stores | call_descriptor::cma_possible | call_descriptor::in_place);
  return (head & ~call_descriptor::not_compared) | buffers |
         (online_tuner::class_of(bytes) + 1) << call_descriptor::first_variant_bit;
}

/// One rank's part.
class variant_choice {
 public:
  using clock = std::chrono::steady_clock;

  variant_choice(int ranks, int me, algorithm forced) : ranks_(ranks) {
    if (me == 0 && ranks > 1 && forced == algorithm::automatic) tuner_.emplace();
  }
  variant_choice(const variant_choice&) = delete;
  variant_choice& operator=(const variant_choice&) = delete;
  ~variant_choice() {
    if (tuner_) print_settled(*tuner_, ranks_);
  }

  /// Before this rank publishes its descriptor: the bits of `head` for the variant it asks for, of a call with `bytes`
  /// in its larger buffer.
  [[nodiscard, gnu::always_inline]] inline std::uint64_t ask(std::uint64_t head, std::size_t bytes) {
    timing_ = false;
    const std::size_t least =
        (head & call_descriptor::loads_and_stores) != 0 ? least_tried_mapped : least_tried_unmapped;
    return tuner_ && bytes >= least ? call_descriptor::variant_of_index(next(head, bytes)) : 0;
  }
  /// All have entered: `first` is the first rank's descriptor, `differ` the bits of heads that differ among ranks.
  void agree(const call_descriptor& first, std::uint64_t differ) noexcept {
    chosen_ = {};
    const std::size_t index = first.variant_index();
    if ((differ & (call_descriptor::loads_and_stores | call_descriptor::cma_possible)) != 0) {
      timing_ = false;  // another variant runs than was asked for
    } else if (index != 0) {
      const auto variants = variants_of(call_descriptor::kind_of(first.head, ranks_));
      if (index < variants.size()) chosen_ = variants[index];
    }
    if (timing_) began_ = clock::now();
  }
  /// All have exited.
  void end() noexcept {
    if (timing_) finish();
  }

  /// The variant of the present operation, the same on all ranks.
  [[nodiscard]] variant chosen() const noexcept { return chosen_; }

 private:
  [[nodiscard, gnu::noinline]] std::size_t next(std::uint64_t head, std::size_t bytes) noexcept {
    const call_kind call = call_descriptor::kind_of(head, ranks_);
    const std::size_t variants = variants_of(call).size();
    if (variants == 1) return 0;
    const std::size_t found = tuner_->next(tuning_kind(head, bytes), bytes, variants);
    timing_ = tuner_->timing();
    return found;
  }
  [[gnu::cold, gnu::noinline]] void finish() noexcept {
    timing_ = false;
    tuner_->done(std::chrono::duration<double, std::micro>(clock::now() - began_).count());
  }

  int ranks_;
  variant chosen_;
  bool timing_ = false;
  clock::time_point began_{};
  std::optional<online_tuner> tuner_;  // of the first rank
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
