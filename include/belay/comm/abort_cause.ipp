// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Throws what a world was aborted for.
#pragma once

#include <utility>

#include "belay/comm/abort_cause.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL void raise_cause(abort_cause why, const call_site& mine, double seconds_waited) {
  comm_error::details what;
  what.fault = why.fault;
  what.culprits = std::move(why.culprits);
  what.message = std::move(why.message);
  what.there = std::move(why.there);
  what.signal = why.signal;
  what.exit_code = why.exit_code;
  what.thrown = why.thrown;
  if (mine.what != operation::none) what.operation = name(mine.what);
  what.group = mine.group;
  what.operation_number = mine.number;
  what.bytes = mine.bytes;
  what.here = mine.at;
  what.seconds_waited = seconds_waited;
  throw comm_error(std::move(what));
}

}  // namespace belay::inline BELAY_ABI
