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
struct life_end {
  std::exception_ptr error;  // null: it returned
  std::string what;
  bool stopped_the_world = false;  // its failure was the first
};

/// Runs `body(rank&)`; returns when its started operations are over too.
template <class Body>
[[nodiscard]] life_end live(const standing& seat, const std::shared_ptr<membership>& source, Body&& body) {
  life_end end;
  std::optional<rank> self;
  const auto failed = [&](std::string what) {
    end.error = std::current_exception();
    end.what = std::move(what);
    if (!seat.world->in_own_process()) return;
    end.stopped_the_world = seat.world->stop(thrown_by(*seat.world, seat.number, end.what.c_str()));
  };
  try {
    self.emplace(seat, source);
    body(*self);
  } catch (const std::exception& problem) {
    failed(message_of(problem));
  } catch (...) {
    failed("an exception that is no std::exception");
  }
  if (!seat.world->in_own_process()) end_forked_child(seat.number, end.what.c_str());
  // Among threads by the first rank that comes out of a failed run, while the others are where they are: one may never
  // come out. Processes have somebody who holds them for that.
  if (seat.world->space() == address_space::one && seat.world->stopped()) report_failure_once(*seat.world);
  seat.world->leave(seat.number, lane::caller);
  source->leave(seat);
  if (self) self->finish();
  seat.world->leave(seat.number, lane::stream);
  return end;
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
