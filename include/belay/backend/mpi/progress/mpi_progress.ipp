// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How ranks under MPI start, wait, fail and end.
#pragma once

#include <mpi.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/mpi/failure/flight_report.hpp"
#include "belay/backend/mpi/failure/out_of_band.hpp"
#include "belay/backend/mpi/failure/world_status.hpp"
#include "belay/backend/mpi/progress/control_channel.hpp"
#include "belay/backend/mpi/progress/mpi_progress.hpp"
#include "belay/backend/mpi/progress/mpi_runtime.hpp"
#include "belay/comm/abort_cause.hpp"
#include "belay/comm/event_count.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/process.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

BELAY_DECL mpi_progress::mpi_progress(MPI_Comm parent, time_limits limits, where at)
    : limits_(limits), status_(limits.time) {
  expect(MPI_Comm_rank(parent, &number_), "MPI_Comm_rank");
  expect(MPI_Comm_size(parent, &ranks_), "MPI_Comm_size");
  for (MPI_Comm& comm : comms_) {
    MPI_Request made;
    expect(MPI_Comm_idup(parent, &comm, &made), "MPI_Comm_idup");
    finish_request(made, limits_.timeout, limits_.time, "the start of a world", at);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  }
  const rank_info self{process::self(), now_ns()};
  std::vector<rank_info> all(static_cast<std::size_t>(ranks_));
  MPI_Request gathered;
  expect(MPI_Iallgather(&self, sizeof self, MPI_BYTE, all.data(), sizeof self, MPI_BYTE, comms_[2], &gathered),
         "MPI_Iallgather");
  finish_request(gathered, limits_.timeout, limits_.time, "the start of a world", at);
  for (const rank_info& each : all) processes_.push_back(each.identity);
  oversubscribed_ = is_oversubscribed(self.identity);
  reporter_ = std::make_unique<flight_reporter>(status_, processes_, number_, all.front().now);
  for (lane which : all_lanes) {
    channels_[index(which)] = std::make_unique<control_channel>(comms_[index(which)], ranks_, status_.history(which));
  }
  out_of_band_ = std::make_unique<out_of_band>(comms_[2], ranks_, number_, status_);
}

BELAY_DECL void mpi_progress::look_for_abort() noexcept {
  try {
    if (!aborted()) out_of_band_->poll();
  } catch (const std::exception&) {
    // The next operation meets it too, and says where.
  }
}

BELAY_DECL void mpi_progress::raise(const call_site& mine, double seconds_waited) const {
  reporter_->print();
  status_.raise(mine, seconds_waited);
}

BELAY_DECL bool mpi_progress::abort(abort_cause why) {
  if (!status_.abort(why)) return false;
  aborted_here_.store(true, std::memory_order_release);
  out_of_band_->send_abort(why);
  return true;
}

BELAY_DECL void mpi_progress::guarded(const call_site& call, function_ref<void()> work) {
  try {
    work();
  } catch (const mpi_error& problem) {
    abort_cause why{comm_fault::peer_failed, {}, problem.what(), ""};
    why.culprits.push_back(problem.peer() >= 0 ? problem.peer() : number_);
    abort(std::move(why));
    raise(call);
  }
}

BELAY_DECL void mpi_progress::await(lane which, const call_site& call, clock::duration limit, function_ref<bool()> done,
                                    awaited_ranks awaited) {
  guarded(call, [&] { wait(which, call, limit, done, awaited); });
}

BELAY_DECL void mpi_progress::post_exit(lane which) noexcept {
  if (std::exchange(has_left_[index(which)], true)) return;
  try {
    using status = control_message::exit_status;
    const control_message last =
        control_message::exit_message(recorder(which).last(), aborted() ? status::aborted : status::returned);
    for (int rank = 0; rank < ranks_; ++rank) {
      if (rank != number_) channel(which).post(rank, last);
    }
  } catch (const std::exception&) {
    // Ranks that wait for this one have their deadline.
  }
}

BELAY_DECL void mpi_progress::close(const call_site& call) {
  for (lane which : all_lanes) {
    if (aborted()) return;
    const auto remaining = [&](auto tell) {
      for (int rank = 0; rank < ranks_; ++rank) {
        if (rank != number_ && !channel(which).exited(rank)) tell(rank, true);
      }
    };
    const auto all_exited = [&] {
      int missing = 0;
      remaining([&](int, bool) { ++missing; });
      return missing == 0 && channel(which).drained();
    };
    try {
      guarded(call, [&] { wait(which, call, largest_value<clock::duration>, all_exited, remaining); });
    } catch (const comm_error&) {
      // A world that others have stopped is their error; this rank's body has returned.
      if (aborted_here_.load(std::memory_order_acquire)) throw;
      return;
    }
  }
  for (int rank = 0; rank < ranks_; ++rank) {
    for (lane which : all_lanes) {
      if (rank != number_ && !channel(which).returned(rank)) return;  // the cause of its abort is in transit
    }
  }
  if (aborted() || !out_of_band_->drained()) return;
  for (MPI_Comm& comm : comms_) MPI_Comm_free(&comm);
}

BELAY_DECL std::uint64_t mpi_progress::now_ns() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

BELAY_DECL bool mpi_progress::is_oversubscribed(const process& self) const noexcept {
  std::ptrdiff_t neighbours = 0, beside = 0;
  for (const process& other : processes_) {
    if (other.machine == 0 || other.machine != self.machine) continue;
    ++neighbours;
    if (self.core >= 0 && other.core == self.core) ++beside;
  }
  return neighbours > greater_of<std::ptrdiff_t>(1, ::sysconf(_SC_NPROCESSORS_ONLN)) || beside > 1;
}

BELAY_DECL void mpi_progress::wait(lane which, const call_site& call, clock::duration timeout,
                                   function_ref<bool()> done, awaited_ranks awaited) {
  int polls = 0;
  const int spins = oversubscribed_ ? 0 : 2000;
  const auto poll = [&] {
    channel(which).poll();
    if (done()) return true;
    if (polls++ % 16 == 0) out_of_band_->poll();
    if (!aborted()) return false;
    await_late_messages(which, call, done, awaited);
    return true;
  };
  while (polls < spins) {
    if (poll()) return;
  }
  // From here on the core is given away between polls, for longer and longer.
  for (int i = 0; i < 100; ++i) {
    if (poll()) return;
    ::sched_yield();
  }
  const auto start = now();
  if (call.what != operation::none) recorder(which).wait_from(flight_microseconds(start));
  auto next_inspection = clock::now() + slice;  // of processes, which are the machine's
  auto pause = std::chrono::microseconds(20);
  clock::time_point stalled_since{};
  bool asked = false;
  const auto grace = lesser_of<clock::duration>(timeout / 4, std::chrono::milliseconds(500));
  while (true) {
    polls = 0;
    if (poll()) {
      slept_us_[index(which)] += flight_microseconds(now()) - flight_microseconds(start) + 1;
      return;
    }
    expect_not_exited(which, call, awaited, start);
    if (const auto looked = clock::now(); looked >= next_inspection) {
      next_inspection = looked + slice;
      inspect(which, call, awaited, now(), stalled_since);
    }
    const auto waited = now() - start;
    if (!asked && waited >= timeout - grace) {
      asked = true;
      awaited([&](int rank, bool) { out_of_band_->ask(rank, which); });
    }
    if (waited >= timeout) time_out(which, call, timeout, awaited, start);
    nap(pause);
    pause = lesser_of(pause + pause / 8 + std::chrono::microseconds(1), std::chrono::microseconds(1000));
  }
}

BELAY_DECL void mpi_progress::await_late_messages(lane which, const call_site& call, function_ref<bool()> done,
                                                  awaited_ranks awaited) {
  post_exit(which);
  const auto until = clock::now() + slice;
  bool may_come = true;
  while (may_come && clock::now() < until) {
    channel(which).poll();
    if (done()) return;
    may_come = false;
    awaited([&](int rank, bool) { may_come = may_come || !channel(which).exited(rank); });
    if (may_come) nap(std::chrono::microseconds(20));
  }
  raise(call);
}

BELAY_DECL void mpi_progress::fail(lane which, const call_site& call, abort_cause why, double waited) {
  abort(std::move(why));
  post_exit(which);
  raise(call, waited);
}

BELAY_DECL void mpi_progress::expect_not_exited(lane which, const call_site& call, awaited_ranks awaited,
                                                clock::time_point start) {
  abort_cause why;
  awaited([&](int rank, bool owes) {
    if (!owes || !channel(which).returned(rank)) return;
    why.culprits.push_back(rank);
    why.message += (why.message.empty() ? "rank " : ", rank ") + std::to_string(rank) + " (" +
                   channel(which).last_seen(rank) + ") returned";
  });
  if (why.culprits.empty()) return;
  why.fault = comm_fault::peer_failed;
  why.there = channel(which).last_site(why.culprits.front());
  why.message += " and never entered " + call.text();
  fail(which, call, std::move(why), seconds(now() - start));
}

BELAY_DECL void mpi_progress::inspect(lane which, const call_site& call, awaited_ranks awaited, clock::time_point now,
                                      clock::time_point& stalled_since) {
  abort_cause why;
  bool stopped_peer = false;
  awaited([&](int rank, bool) {
    const process_state state = state_of(rank);
    const bool gone = state == process_state::gone;
    if (state == process_state::stopped) {
      if (stalled_since == clock::time_point{}) stalled_since = now;
      stopped_peer = true;
    }
    if (!gone && !(state == process_state::stopped && now - stalled_since >= limits_.stall)) return;
    why.process_gone = why.process_gone || gone;
    why.culprits.push_back(rank);
    why.message += (why.message.empty() ? "rank " : ", rank ") + std::to_string(rank) + " (" +
                   channel(which).last_seen(rank) + (gone ? ") died: its process " : ") is stopped: its process ") +
                   std::to_string(processes_[static_cast<std::size_t>(rank)].number) +
                   (gone ? " is gone" : " has not run for " + std::to_string(seconds(now - stalled_since)) + " s");
  });
  if (!stopped_peer) stalled_since = {};
  if (why.culprits.empty()) return;
  why.fault = comm_fault::peer_failed;
  why.there = channel(which).last_site(why.culprits.front());
  why.message += "; it was awaited in " + call.text();
  fail(which, call, std::move(why), 0);
}

BELAY_DECL std::string mpi_progress::whereabouts(lane which, int rank) {
  std::string out = "rank " + std::to_string(rank) + " (";
  const std::string answer = out_of_band_->answer(rank);
  switch (state_of(rank)) {
    case process_state::stopped: return out + "stopped, " + channel(which).last_seen(rank) + ")";
    case process_state::gone: return out + "its process is gone, " + channel(which).last_seen(rank) + ")";
    case process_state::running: out += "running, "; break;
    case process_state::unknown: break;
  }
  if (!answer.empty()) return out + answer + ")";
  return out + "waits in no operation, " + channel(which).last_seen(rank) + ")";
}

BELAY_DECL void mpi_progress::time_out(lane which, const call_site& call, clock::duration timeout,
                                       awaited_ranks awaited, clock::time_point start) {
  abort_cause why;
  why.fault = comm_fault::timeout;
  awaited([&](int rank, bool) {
    why.culprits.push_back(rank);
    why.process_gone = why.process_gone || state_of(rank) == process_state::gone;
    why.message += (why.message.empty() ? "" : ", ") + whereabouts(which, rank);
  });
  if (!why.culprits.empty()) why.there = channel(which).last_site(why.culprits.front());
  why.message += " did not arrive in " + call.text() + " within " + std::to_string(seconds(timeout)) + " s";
  fail(which, call, std::move(why), seconds(now() - start));
}

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
