// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Turns of two flows, and their end.
#pragma once

#include <utility>

#include "belay/step/flow_pair.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL void flow_pair::run(function_ref<void()> first, function_ref<void()> second,
                               function_ref<void(pair_turn)> changes, where at) {
  const auto body = [&] {
    try {
      second();
      changes(pair_turn::second);
    } catch (const cut_off&) {
      // The first error is the other flow's.
    }
  };
  const function_ref<void()> caught = body;
  second_ = &caught;
  changes_ = &changes;
  error_ = nullptr;
  hand_overs_ = 0;
  turn_ = pair_turn::first;
  first_is_over_ = false;
  at_ = at;
  try {
    first();
    changes(pair_turn::first);
  } catch (const cut_off&) {
  } catch (...) {
    error_ = std::current_exception();
  }
  first_is_over_ = true;
  // What has begun is brought to its end in any case: its objects live on the other stack.
  if (other_.under_way() || (second_ != nullptr && error_ == nullptr)) run_second();
  second_ = nullptr;
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
}

BELAY_DECL void flow_pair::run_second() {
  turn_ = pair_turn::second;
  try {
    if (const auto* const begins = std::exchange(second_, nullptr); begins != nullptr)
      other_.start(*begins, at_);
    else
      other_.go_on(at_);
  } catch (...) {
    if (error_ == nullptr) error_ = std::current_exception();
  }
  turn_ = pair_turn::first;
}

BELAY_DECL void flow_pair::hand_over() {
  if (turn_ == pair_turn::second) {
    if (!first_is_over_) {
      ++hand_overs_;
      (*changes_)(pair_turn::second);
      other_.hand_back();
    }
  } else if (second_ != nullptr || other_.under_way()) {
    ++hand_overs_;
    (*changes_)(pair_turn::first);
    run_second();
  }
  expect_whole();
}

}  // namespace belay::inline BELAY_ABI
