// expect: names a micro-batch, chunk or peer that it does not have
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
    out(action::compute(action_kind::forward, 0));
#ifdef BELAY_BROKEN
    out(action::exchange().send(payload::activation, 0, at.rank + 1));
#endif
    out(action::compute(action_kind::backward, at.micro_batches - 1));
  }
};

static constexpr auto table = schedule::generate<hand_written, 1, 1>();
static_assert(belay::require_proven<table>());
