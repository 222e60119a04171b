// expect: every micro-batch needs its backward
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
    for (std::size_t i = 0; i < at.micro_batches; ++i) {
      out(action::compute(action_kind::forward, i));
#ifdef BELAY_BROKEN
      if (i == 3) continue;
#endif
      out(action::compute(action_kind::backward, i));
    }
  }
};

static constexpr auto table = schedule::generate<hand_written, 1, 8>();
static_assert(belay::proof(table).complete, "every micro-batch needs its backward");
