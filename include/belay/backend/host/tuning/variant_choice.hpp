// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How the ranks of a group come to do an operation in one manner: the first rank says which in its offer and, while it
// tries, takes the time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "belay/backend/host/tuning/variant.hpp"
#include "belay/backend/host/rendezvous/call_descriptor.hpp"
#include "belay/backend/host/tuning/online_tuner.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// One rank's part in it.
class manner_choice {
 public:
  using clock = std::chrono::steady_clock;

  manner_choice(int ranks, int me, algorithm forced) : ranks_(ranks) {
    if (me == 0 && ranks > 1 && forced == algorithm::automatic) trials_.emplace();
  }

  /// Before this rank's offer is published: the bits of its `head` for the manner it asks for, of a call with `bytes` in its
  /// larger buffer.
  [[nodiscard, gnu::always_inline]] inline std::uint64_t ask(std::uint64_t head, std::size_t bytes) {
    timing_ = false;
    const std::size_t least = (head & offer::loads_and_stores) != 0 ? least_tried_seen : least_tried_unseen;
    return trials_ && bytes >= least ? offer::manner_of_index(next(head, bytes)) : 0;
  }
  /// All have entered: `first` is the first rank's offer, `differ` the bits of heads that are not the same on all ranks.
  void agree(const offer& first, std::uint64_t differ) noexcept {
    chosen_ = {};
    const std::size_t index = first.manner_index();
    if ((differ & (offer::loads_and_stores | offer::kernel_copies)) != 0) {
      timing_ = false;  // what was asked for is not done
    } else if (index != 0) {
      const auto manners = manners_of(offer::kind_of(first.head, ranks_));
      if (index < manners.size()) chosen_ = manners[index];
    }
    if (timing_) began_ = clock::now();
  }
  /// All have left.
  void end() noexcept {
    if (timing_) finish();
  }

  /// That of the present operation, the same on all ranks.
  [[nodiscard]] manner chosen() const noexcept { return chosen_; }

 private:
  [[nodiscard, gnu::noinline]] std::size_t next(std::uint64_t head, std::size_t bytes) noexcept {
    const call_kind call = offer::kind_of(head, ranks_);
    const std::size_t manners = manners_of(call).size();
    if (manners == 1) return 0;
    const std::uint64_t ways = head & (offer::loads_and_stores | offer::kernel_copies | offer::in_place);
    const std::uint64_t size_class = (trials::class_of(bytes) + 1) << offer::first_manner_bit;
    const std::size_t found = trials_->next((head & ~offer::ways) | ways | size_class, bytes, manners);
    timing_ = trials_->timing();
    return found;
  }
  [[gnu::cold, gnu::noinline]] void finish() noexcept {
    timing_ = false;
    trials_->done(std::chrono::duration<double, std::micro>(clock::now() - began_).count());
  }

  int ranks_;
  manner chosen_;
  bool timing_ = false;
  clock::time_point began_{};
  std::optional<trials> trials_;  // of the first rank
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
