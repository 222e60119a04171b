// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rank from its first call to its last.
#pragma once

#include <optional>
#include <utility>

#include "belay/backend/host/failure/flight_dump.hpp"
#include "belay/backend/host/rank.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

BELAY_DECL run_result run_rank_body(const epoch_view& view, const std::shared_ptr<membership>& source,
                                    function_ref<void(rank&)> body) {
  run_result end;
  std::optional<rank> self;
  const auto failed = [&](std::string what, error_kind kind) {
    end.error = std::current_exception();
    end.what = std::move(what);
    end.kind = kind;
    if (!view.world->in_own_process()) return;
    end.aborted_the_world = view.world->abort(thrown_by(*view.world, view.number, end.what.c_str(), kind));
  };
  try {
    self.emplace(view, source);
    body(*self);
  } catch (const std::exception& problem) {
    failed(message_of(problem), kind_of(problem));
  } catch (...) {
    failed("an exception that is no std::exception", error_kind::other);
  }
  if (!view.world->in_own_process()) end_forked_child(view.number, end.what.c_str());
  // Among threads the first rank that comes out of a failed run reports it, while the others are still in their calls:
  // one may never come out. For processes the coordinator does.
  if (view.world->space() == address_space::one && view.world->aborted()) report_failure_once(*view.world);
  view.world->note_exit(view.number, lane::caller);
  source->note_exit(view);
  if (self) self->finish();
  view.world->note_exit(view.number, lane::stream);
  return end;
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
