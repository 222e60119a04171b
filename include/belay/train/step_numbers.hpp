// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a loop over `run.steps(n)` runs over: the numbers of steps, each until its step is committed.
// IWYU pragma: private, include "belay/train/run.hpp"
#pragma once

#include <cstddef>
#include <cstdint>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// Whether the step that has ended is to be run again.
enum class next_step : std::uint8_t { same, another };

/// Made by `run.steps`; `Run` outlives it.
template <class Run>
class step_numbers {
 public:
  struct end_type {};
  class iterator {
   public:
    iterator(Run& owner, std::size_t count, std::size_t done) noexcept
        : owner_(&owner), count_(count), number_(done + 1) {}
    [[nodiscard]] std::size_t operator*() const noexcept { return number_; }
    iterator& operator++() {
      if (owner_->next() == next_step::another) ++number_;
      return *this;
    }
    [[nodiscard]] bool operator==(end_type) const noexcept { return number_ > count_; }

   private:
    Run* owner_;
    std::size_t count_;
    std::size_t number_;
  };

  step_numbers(Run& owner, std::size_t count, std::size_t done) noexcept : owner_(&owner), count_(count), done_(done) {}

  [[nodiscard]] iterator begin() const noexcept { return {*owner_, count_, done_}; }
  [[nodiscard]] end_type end() const noexcept { return {}; }

 private:
  Run* owner_;
  std::size_t count_, done_;
};

}  // namespace belay::inline BELAY_ABI
