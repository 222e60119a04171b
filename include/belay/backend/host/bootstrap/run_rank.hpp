// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rank from its first call to its last: whatever its body does, its peers are told how it ended, and nobody waits
// for it afterwards.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "belay/backend/host/failure/flight_dump.hpp"
#include "belay/backend/host/membership/membership.hpp"
#include "belay/backend/host/rank.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// How a body ended.
struct run_result {
  std::exception_ptr error;  // null: it returned
  std::string what;
  bool stopped_the_world = false;  // its failure was the first
};

/// Runs `body(rank&)`; returns when its started operations are over too.
template <class Body>
[[nodiscard]] run_result live(const epoch_view& view, const std::shared_ptr<membership>& source, Body&& body) {
  run_result end;
  std::optional<rank> self;
  const auto failed = [&](std::string what) {
    end.error = std::current_exception();
    end.what = std::move(what);
    if (!view.world->in_own_process()) return;
    end.stopped_the_world = view.world->abort(thrown_by(*view.world, view.number, end.what.c_str()));
  };
  try {
    self.emplace(view, source);
    body(*self);
  } catch (const std::exception& problem) {
    failed(message_of(problem));
  } catch (...) {
    failed("an exception that is no std::exception");
  }
  if (!view.world->in_own_process()) end_forked_child(view.number, end.what.c_str());
  // Among threads by the first rank that comes out of a failed run, while the others are where they are: one may never
  // come out. Processes have somebody who holds them for that.
  if (view.world->space() == address_space::one && view.world->aborted()) report_failure_once(*view.world);
  view.world->leave(view.number, lane::caller);
  source->leave(view);
  if (self) self->finish();
  view.world->leave(view.number, lane::stream);
  return end;
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
