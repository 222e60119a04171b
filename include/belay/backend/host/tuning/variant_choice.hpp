// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How the ranks of a group come to do an operation in one manner: the first rank says which in its offer and, while it
// tries, takes the time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "belay/backend/host/rendezvous/call_descriptor.hpp"
#include "belay/backend/host/tuning/online_tuner.hpp"
#include "belay/backend/host/tuning/variant.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// One rank's part in it.
class variant_choice {
 public:
  using clock = std::chrono::steady_clock;

  variant_choice(int ranks, int me, algorithm forced) : ranks_(ranks) {
    if (me == 0 && ranks > 1 && forced == algorithm::automatic) tuner_.emplace();
  }

  /// Before this rank's offer is published: the bits of its `head` for the manner it asks for, of a call with `bytes`
  /// in its larger buffer.
  [[nodiscard, gnu::always_inline]] inline std::uint64_t ask(std::uint64_t head, std::size_t bytes) {
    timing_ = false;
    const std::size_t least =
        (head & call_descriptor::loads_and_stores) != 0 ? least_tried_mapped : least_tried_unmapped;
    return tuner_ && bytes >= least ? call_descriptor::variant_of_index(next(head, bytes)) : 0;
  }
  /// All have entered: `first` is the first rank's offer, `differ` the bits of heads that are not the same on all
  /// ranks.
  void agree(const call_descriptor& first, std::uint64_t differ) noexcept {
    chosen_ = {};
    const std::size_t index = first.variant_index();
    if ((differ & (call_descriptor::loads_and_stores | call_descriptor::cma_possible)) != 0) {
      timing_ = false;  // what was asked for is not done
    } else if (index != 0) {
      const auto variants = variants_of(call_descriptor::kind_of(first.head, ranks_));
      if (index < variants.size()) chosen_ = variants[index];
    }
    if (timing_) began_ = clock::now();
  }
  /// All have left.
  void end() noexcept {
    if (timing_) finish();
  }

  /// That of the present operation, the same on all ranks.
  [[nodiscard]] variant chosen() const noexcept { return chosen_; }

 private:
  [[nodiscard, gnu::noinline]] std::size_t next(std::uint64_t head, std::size_t bytes) noexcept {
    const call_kind call = call_descriptor::kind_of(head, ranks_);
    const std::size_t variants = variants_of(call).size();
    if (variants == 1) return 0;
    const std::uint64_t ways =
        head & (call_descriptor::loads_and_stores | call_descriptor::cma_possible | call_descriptor::in_place);
    const std::uint64_t size_class = (online_tuner::class_of(bytes) + 1) << call_descriptor::first_variant_bit;
    const std::size_t found = tuner_->next((head & ~call_descriptor::ways) | ways | size_class, bytes, variants);
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
