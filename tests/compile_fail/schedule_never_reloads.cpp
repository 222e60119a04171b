// expect: forgets, repeats or misplaces an action beside its computes
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
    if (at.first()) {
      out(action::compute(action_kind::forward, 0));
      out(action::exchange().send(payload::activation, 0, 1));
      out(action::compute(action_kind::offload, 0));
#ifndef BELAY_BROKEN
      out(action::compute(action_kind::reload, 0));
#endif
      out(action::exchange().receive(payload::gradient, 0, 1));
      out(action::compute(action_kind::backward, 0));
      return;
    }
    out(action::exchange().receive(payload::activation, 0, 0));
    out(action::compute(action_kind::forward, 0));
    out(action::compute(action_kind::backward, 0));
    out(action::exchange().send(payload::gradient, 0, 0));
  }
};

static constexpr auto table = schedule::generate<hand_written, 2, 1>();
static_assert(belay::require_proven<table>());
