// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Two micro-batches whose calls of layers a rank runs beside each other: the forward of one and the backward of the
// other, on one thread and one compute stream. Each hands over where it has started a communication that it waits for
// next. So while the rows of one are on their way, the stream has work of the other. Who is next depends on nothing but
// the program: all ranks that run the same layers start their communications in one order, and a rehearsal finds the
// memory of the run.
// IWYU pragma: private, include "belay/step.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>

#include "belay/core/config.hpp"
#include "belay/core/fiber.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// The one of two flows that begins, and the other.
enum class pair_turn : std::uint8_t { first, second };

/// Two flows in turns, of which one has the stack of the thread. An engine that runs them (`engine::run_beside`) hands
/// over between them. Its stack is made once, and pairs of all steps use it.
class flow_pair {
 public:
  /// Throws budget_error where there is no room for a stack.
  explicit flow_pair(where at = where::current()) : other_(at) {}

  /// Runs `first()` and `second()`, and returns when both are over. The second begins where the first hands over, or is
  /// over; when one is over the other runs to its end alone. `changes(turn)` is called at the end of each turn, with
  /// whose it was. What one throws cuts the other off: its `hand_over` throws what no handler of a std::exception
  /// sees, so that its objects are destroyed. Then the first error leaves.
  void run(function_ref<void()> first, function_ref<void()> second, function_ref<void(pair_turn)> changes,
           where at = where::current());
  /// In a flow: the other one runs until it hands over, or is over. Does nothing when it is.
  void hand_over();

  /// How often the flows have handed over in the last run.
  [[nodiscard]] std::size_t hand_overs() const noexcept { return hand_overs_; }

 private:
  struct cut_off {};  // no std::exception

  void run_second();
  void expect_whole() const {
    if (error_ != nullptr) throw cut_off{};
  }

  fiber other_;
  const function_ref<void()>* second_ = nullptr;  // until it has begun
  const function_ref<void(pair_turn)>* changes_ = nullptr;
  std::exception_ptr error_;  // the first
  where at_;
  std::size_t hand_overs_ = 0;
  pair_turn turn_ = pair_turn::first;
  bool first_is_over_ = false;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/step/flow_pair.ipp"  // IWYU pragma: export
#endif
