// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Whether a rank lives and runs.
#pragma once

#include "belay/backend/host/bootstrap/rank_record.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

BELAY_DECL const watched_process* rank_record::alive() const noexcept {
  if (over) return nullptr;
  if (member) return &*member;
  return child && !child_gone ? &*child : nullptr;
}

BELAY_DECL bool rank_record::stopped() const noexcept {
  return (member && !over && member->stopped()) || (child && !child_gone && child->stopped());
}

BELAY_DECL bool rank_record::found_stalled(time_point::duration step, time_point::duration limit) {
  if (!stopped()) {
    stopped_for.reset();
    told_stalled = false;
    return false;
  }
  stopped_for = stopped_for ? *stopped_for + step : time_point::duration(0);
  if (told_stalled || *stopped_for < limit) return false;
  return told_stalled = true;
}

BELAY_DECL std::string rank_record::text(int rank) const {
  const std::string name = "rank " + std::to_string(rank);
  if (over) return name + " (gone)";
  if (!joined) return name + (stopped() ? " (has not joined, stopped)" : " (has not joined)");
  return name + (stopped() ? " (stopped)" : " (running)");
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
