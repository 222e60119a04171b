// expect: deadlocks, because a send waits for its receive: put the transfers
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/proof.hpp"
#include "belay/parallel/schedule/rules.hpp"

namespace schedule = belay::schedule;
using schedule::action;
using schedule::action_kind;
using schedule::payload;

struct hand_written {
  static constexpr std::string_view name = "hand-written";
  template <class Out>
  constexpr void operator()(Out& out, schedule::rank_position at) const {
    // Two micro-batches on two stages; both neighbours would send before they receive.
    if (at.first()) {
      out(action::compute(action_kind::forward, 0));
      out(action::exchange().send(payload::activation, 0, 1));
      out(action::compute(action_kind::forward, 1));
#ifdef BELAY_BROKEN
      out(action::exchange().send(payload::activation, 1, 1));
      out(action::exchange().receive(payload::gradient, 0, 1));
#else
      out(action::exchange().send(payload::activation, 1, 1).receive(payload::gradient, 0, 1));
#endif
      out(action::compute(action_kind::backward, 0));
      out(action::exchange().receive(payload::gradient, 1, 1));
      out(action::compute(action_kind::backward, 1));
    } else {
      out(action::exchange().receive(payload::activation, 0, 0));
      out(action::compute(action_kind::forward, 0));
      out(action::compute(action_kind::backward, 0));
#ifdef BELAY_BROKEN
      out(action::exchange().send(payload::gradient, 0, 0));
      out(action::exchange().receive(payload::activation, 1, 0));
#else
      out(action::exchange().send(payload::gradient, 0, 0).receive(payload::activation, 1, 0));
#endif
      out(action::compute(action_kind::forward, 1));
      out(action::compute(action_kind::backward, 1));
      out(action::exchange().send(payload::gradient, 1, 0));
    }
  }
};

static constexpr auto table = schedule::generate<hand_written, 2, 2>();
static_assert(belay::require_proven<table>());
