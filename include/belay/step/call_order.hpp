// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The order in which a step does something with numbered things, such as gathering its layers or bringing back what
// its calls keep. A rehearsal notes it; the run follows it, and never changes it.
//
//   belay::call_order order{{2, 1, 0}};
//   order.begin();
//   const bool as_planned = order.advance(2);   // then order.next() is 1
// IWYU pragma: private, include "belay/step.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/hash.hpp"

namespace belay::inline BELAY_ABI {

/// Numbers in their order. Immutable in a run.
class call_order {
 public:
  static constexpr std::uint32_t nothing = 0xffffffffU;

  call_order() = default;
  explicit call_order(std::vector<std::uint32_t> numbers) : numbers_(std::move(numbers)) {}

  void begin() noexcept { at_ = 0; }
  /// The number that comes next, or after `more` others; `nothing` beyond the end of the order.
  [[nodiscard]] std::uint32_t next(std::size_t more = 0) const noexcept {
    return more < numbers_.size() - at_ ? numbers_[at_ + more] : nothing;
  }
  /// `number` comes: whether it is the next one.
  [[nodiscard]] bool advance(std::uint32_t number) noexcept {
    if (next() != number) return false;
    ++at_;
    return true;
  }

  /// For a rehearsal.
  void note(std::uint32_t number) { numbers_.push_back(number); }
  [[nodiscard]] const std::vector<std::uint32_t>& numbers() const noexcept { return numbers_; }
  [[nodiscard]] std::uint64_t fingerprint() const noexcept {
    fnv1a hash;
    for (std::uint32_t number : numbers_) hash.add(number);
    return hash.value();
  }

 private:
  std::vector<std::uint32_t> numbers_;
  std::size_t at_ = 0;
};

/// An order as a run is to follow it, and as it was found.
struct rehearsed_order {
  call_order expected, found;
};

}  // namespace belay::inline BELAY_ABI
