// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How a world stops, and what errors say of its ranks.
#pragma once

#include <unistd.h>  // getpid

#include <cerrno>
#include <chrono>

#include "belay/backend/host/failure/world_status.hpp"
#include "belay/backend/host/memory/address_map.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/process.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

[[gnu::cold]] BELAY_DECL void world_status::arrive(int rank, pid_t pid, const core_set& cores, int spins) noexcept {
  spins_ = spins;
  home_ = std::make_shared<const own_process>();
  rank_block& seat = shared_.seat(rank);
  seat.reads_others.store(pid != 0 && may_read_processes(), std::memory_order_relaxed);
  for (std::size_t i = 0; i < core_set::words; ++i) seat.cores[i].store(cores.bits[i], std::memory_order_relaxed);
  seat.pid.store(pid, std::memory_order_relaxed);
  seat.core_count.store(static_cast<std::uint32_t>(cores.count()), std::memory_order_seq_cst);
  core_set all;
  for (int q = 0; q < ranks(); ++q) {
    const rank_block& other = shared_.seat(q);
    if (other.core_count.load(std::memory_order_seq_cst) == 0) return;  // a later rank will count
    for (std::size_t i = 0; i < core_set::words; ++i) all.bits[i] |= other.cores[i].load(std::memory_order_relaxed);
  }
  shared_.header().cores.store(all.count(), std::memory_order_relaxed);
}

[[gnu::cold]] BELAY_DECL bool world_status::abort(const abort_cause& why) noexcept {
  const auto write = [&, &cause = shared_.header().cause] {
    cause.fault = static_cast<std::uint32_t>(why.fault);
    cause.culprit_count =
        static_cast<std::uint32_t>(lesser_of<std::size_t>(why.culprits.size(), shared_cause::most_culprits));
    for (std::size_t i = 0; i < cause.culprit_count; ++i) cause.culprits[i] = why.culprits[i];
    cause.signal = why.signal;
    cause.exit_code = why.exit_code;
    cause.thrown = static_cast<std::uint32_t>(why.thrown);
    cause.at_us = microseconds(now());
    cause.message.set(why.message);
    cause.there.set(why.there);
  };
  return shared_.header().abort.abort(static_cast<std::uint32_t>(::getpid()), write, [this] { notify_all_ranks(); });
}

[[gnu::cold]] BELAY_DECL void world_status::revoke() noexcept {
  shared_.header().abort.revoke();
  abort({comm_fault::revoked, {}, "the world was given up by all its ranks", ""});
  notify_all_ranks();
}

[[gnu::cold]] BELAY_DECL abort_cause world_status::cause() const {
  abort_cause out = original_cause();
  if (shared_.header().abort.revoked() && out.fault != comm_fault::revoked) {
    out.message =
        "the survivors have gone on in a new world after " + std::string(name(out.fault)) + ": " + out.message;
    out.fault = comm_fault::revoked;
  }
  return out;
}

[[gnu::cold]] BELAY_DECL abort_cause world_status::original_cause() const {
  control_header& header = shared_.header();
  abort_cause out;
  // Another rank, or the coordinator, may be writing it, or have been killed while it did.
  const auto begun = clock::now();
  const auto go_on = [&](std::uint32_t writer) {
    return may_still_write(state_of_process(static_cast<pid_t>(writer)), clock::now() - begun,
                           std::chrono::seconds(20));
  };
  if (!header.abort.cause_is_written(go_on)) {
    out.message = "the rank that stopped the world ended before it could say why";
    return out;
  }
  const shared_cause& cause = header.cause;
  out.fault = static_cast<comm_fault>(lesser_of(cause.fault, static_cast<std::uint32_t>(comm_fault::revoked)));
  out.culprits.assign(cause.culprits, cause.culprits + lesser_of(cause.culprit_count, shared_cause::most_culprits));
  out.signal = cause.signal;
  out.exit_code = cause.exit_code;
  out.thrown = static_cast<error_kind>(lesser_of(cause.thrown, static_cast<std::uint32_t>(error_kind::backend)));
  out.at_us = cause.at_us;
  out.message = cause.message.get();
  out.there = cause.there.get();
  return out;
}

[[gnu::cold]] BELAY_DECL void world_status::raise(const call_site& mine, double seconds_waited) const {
  raise_cause(cause(), mine, seconds_waited);
}

[[gnu::cold]] BELAY_DECL void world_status::note_exit(int rank, lane which) noexcept {
  rank_block& seat = shared_.seat(rank);
  seat.left[index(which)].store(1, std::memory_order_seq_cst);
  seat.doorbells[index(which)].notify_all();
  notify_all_ranks();
}

[[gnu::cold]] BELAY_DECL std::string world_status::whereabouts(int rank, lane which) const {
  const lane other = which == lane::caller ? lane::stream : lane::caller;
  const flight_record here = recorder(rank, which).last(), aside = recorder(rank, other).last();
  return "rank " + std::to_string(rank) + " (" +
         (is_stopped(rank)  ? "stopped, "
          : is_absent(rank) ? "has not come, "
                            : "") +
         text_of(here, aside, which == lane::caller ? "started" : "called") + ")";
}

[[gnu::cold]] BELAY_DECL std::string world_status::site_of(int rank, lane which) const {
  const flight_record here = recorder(rank, which).last();
  if (here.what != operation::none) return here.site;
  return recorder(rank, which == lane::caller ? lane::stream : lane::caller).last().site;
}

[[gnu::cold]] BELAY_DECL abort_cause world_status::unreadable(int reader, int owner, lane which, std::size_t bytes,
                                                              int error) const {
  const auto patient_until = clock::now() + std::chrono::seconds(1);
  while (error != EPERM && !aborted() && clock::now() < patient_until) std_atomics::yield();
  return {comm_fault::peer_failed,
          {owner},
          "rank " + std::to_string(reader) + " cannot read " + std::to_string(bytes) + " bytes of " +
              whereabouts(owner, which),
          ""};
}

[[gnu::cold]] BELAY_DECL bool world_status::is_stopped(int rank) const noexcept {
  const pid_t pid = pid_of(rank);
  return pid > 0 && state_of_process(pid) == process_state::stopped;
}

[[gnu::cold]] BELAY_DECL void world_status::notify_all_ranks() const noexcept {
  for (int q = 0; q < ranks(); ++q) {
    for (doorbell& each : shared_.seat(q).doorbells) each.notify_all();
  }
}

[[gnu::cold]] BELAY_DECL abort_cause thrown_by(const world_status& world, int number, const char* what,
                                               error_kind kind) {
  const flight_record last = world.recorder(number, lane::caller).last();
  abort_cause why{comm_fault::peer_failed,
                  {number},
                  "rank " + std::to_string(number) + " threw " + last.text() + ": " + what,
                  last.site};
  why.thrown = kind;
  return why;
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
