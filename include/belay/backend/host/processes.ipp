// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Forking the ranks, serving them, and seeing them end.
#pragma once

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>

#include "belay/backend/host/bootstrap/bootstrap_socket.hpp"
#include "belay/backend/host/bootstrap/client.hpp"
#include "belay/backend/host/bootstrap/coordinator.hpp"
#include "belay/backend/host/bootstrap/world_monitor.hpp"
#include "belay/backend/host/failure/watched_process.hpp"
#include "belay/backend/host/membership/process_membership.hpp"
#include "belay/backend/host/processes.hpp"
#include "belay/backend/host/rank.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

BELAY_DECL processes::processes(int ranks, world_options options, where at)
    : ranks_(ranks), options_(checked_options(options, at)) {
  if (ranks < 1) throw usage_error("a world of " + std::to_string(ranks) + " ranks", at);
}

[[nodiscard]] BELAY_DECL int threads_alive() {
  int threads = 0;
  if (DIR* const list = ::opendir("/proc/self/task")) {
    while (const dirent* const entry = ::readdir(list)) threads += entry->d_name[0] != '.';
    ::closedir(list);
  }
  return threads;
}

BELAY_DECL void expect_one_thread(where at) {
  // A joined thread is listed until the kernel has done with it.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  int threads = threads_alive();
  for (; threads > 1 && std::chrono::steady_clock::now() < until; threads = threads_alive()) ::sched_yield();
  if (threads > 1) {
    throw usage_error("ranks as processes are forked, and " + std::to_string(threads - 1) +
                          " other threads of this process are alive: they would hold their locks in the children for "
                          "ever; start the ranks first, or use belay-run",
                      at);
  }
}

// One run of a world of processes. However it ends, no child stays, not even as a zombie.
struct processes::forked_run {
  const world_options& options;
  int ranks;
  body_ref body;
  bootstrap_socket socket;
  world_monitor world;
  coordinator all;
  std::vector<pid_t> children;  // by rank

  forked_run(const processes& of, body_ref run, where at)
      : options(of.options_),
        ranks(of.ranks_),
        body(run),
        socket(bootstrap_socket::open(at)),
        world(ranks, options),
        all(socket, ranks, world.first_control_block(), world, limits(options), at) {
    children.reserve(static_cast<std::size_t>(ranks));
  }
  forked_run(const forked_run&) = delete;
  forked_run& operator=(const forked_run&) = delete;
  ~forked_run() {
    for (std::size_t rank = 0; rank < children.size(); ++rank) {
      if (all.about(static_cast<int>(rank)).child_gone) continue;  // reaped; its number may be another's
      ::kill(children[rank], SIGKILL);
      while (::waitpid(children[rank], nullptr, 0) < 0 && errno == EINTR) {
      }
    }
  }

  [[nodiscard]] static coordinator_options limits(const world_options& options) {
    coordinator_options out;
    out.stall_limit = std::chrono::duration_cast<time_point::duration>(options.stall_limit);
    out.clock = options.clock;
    return out;
  }
  /// The timeout, but at least so many seconds.
  [[nodiscard]] time_point::duration timeout_or(int seconds) const {
    return std::chrono::duration_cast<time_point::duration>(
        greater_of<std::chrono::duration<double>>(options.timeout, std::chrono::seconds(seconds)));
  }

  void fork_all(where at);
  void serve_until_all_end();
  [[noreturn]] void run_child(pid_t parent, int number);
};

BELAY_DECL std::vector<rank_outcome> processes::run_forked(body_ref body, where at) const {
  expect_one_thread(at);
  last_cause_.reset();
  forked_run run(*this, body, at);
  run.fork_all(at);
  run.serve_until_all_end();
  if (const world_status* const failed = run.world.failed()) last_cause_ = failed->original_cause();
  return run.world.outcomes();
}

BELAY_DECL void processes::forked_run::fork_all(where at) {
  std::fflush(nullptr);  // what is buffered is not to be written by every child
  const pid_t parent = ::getpid();
  for (int number = 0; number < ranks; ++number) {
    const pid_t child = ::fork();
    if (child == 0) run_child(parent, number);
    if (child < 0) {
      const std::string why = error_text(errno);
      throw budget_error("processes (" + why + ")", static_cast<std::size_t>(ranks), static_cast<std::size_t>(number),
                         at);
    }
    children.push_back(child);
    all.expect(number, child);
  }
}

// Until all are gone. After a failure, ranks that are stopped when the others are over are killed; so are those that
// have not noticed it within the time that a call may take, or 5 seconds: a core may be long in coming.
BELAY_DECL void processes::forked_run::serve_until_all_end() {
  const auto limit = timeout_or(5);
  const auto lives = [&](int rank) { return all.about(rank).alive() != nullptr; };
  auto failed_at = largest_value<time_point>;
  while (!all.all_over()) {
    all.step(time_by(options.clock) + std::chrono::milliseconds(50));
    const bool survivors_go_on =
        !world.state().aborted() && std::any_of(world.members().begin(), world.members().end(), lives);
    if (world.failed() == nullptr || survivors_go_on) {
      failed_at = largest_value<time_point>;
      continue;
    }
    const auto now = std::chrono::steady_clock::now();
    if (failed_at == largest_value<time_point>) failed_at = now;
    bool some_run = false;
    for (int q = 0; q < ranks; ++q) {
      const watched_process* const living = all.about(q).alive();
      some_run = some_run || (living != nullptr && !living->stopped());
    }
    if (some_run && now - failed_at < limit) continue;
    for (int q = 0; q < ranks; ++q) all.send_signal(q, SIGKILL);
  }
}

// The whole life of a child process: destructors of the parent's objects do not run in it.
BELAY_DECL void processes::forked_run::run_child(pid_t parent, int number) {
  int code = 1;
  bool joined = false;
  try {
    if (!end_with_parent(parent)) ::_exit(1);
    if (options.pin == pinning::one_core_each) pin_to_core(number);
    // The coordinator may be writing a flight file just then.
    const auto until = [&] { return time_by(options.clock) + timeout_or(10); };
    const auto source = std::make_shared<process_membership>(
        client::enter(socket.path(), socket.secret(), number, ranks, until(), where{}, options.clock), options.spins);
    joined = true;
    exit_message last;
    const run_result end = run_rank_body(source->enter(), source, [&](rank& self) { body(self, last.body); });
    if (end.error) {
      last.how = exit_message::outcome::failed;
      last.body = end.what;
    }
    code = end.error ? 1 : 0;
    source->coordinator_client().goodbye(last, until());
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "belay: rank %d: %s\n", number, printable_what(problem).c_str());
    // Without a connection: the first epoch's status is in memory that this process shares since the fork.
    if (!joined) world.could_not_join(number, message_of(problem));
  }
  std::fflush(nullptr);
  ::_exit(code);
}

BELAY_DECL void processes::throw_first(const std::vector<rank_outcome>& ends, where at) const {
  const auto first = std::find_if(ends.begin(), ends.end(), [](const rank_outcome& end) {
    return end.how != rank_outcome::outcome_kind::returned;
  });
  if (first == ends.end()) return;
  const int number = static_cast<int>(first - ends.begin());
  comm_error::details what;
  what.fault = comm_fault::peer_failed;
  what.culprits = {number};
  what.message = "rank " + std::to_string(number) + " " + first->text();
  what.operation = "processes::run";
  what.here = at;
  if (last_cause_) {
    what.fault = last_cause_->fault;
    what.culprits = last_cause_->culprits;
    what.message = last_cause_->message;
    what.there = last_cause_->there;
    what.signal = last_cause_->signal;
    what.exit_code = last_cause_->exit_code;
    what.thrown = last_cause_->thrown;
  }
  throw comm_error(std::move(what));
}

BELAY_DECL void processes::run_ranks(function_ref<void(belay::rank&)> body, where at) const {
  const auto as_rank = [&](rank& self, std::string&) {
    belay::rank of_body(self);
    body(of_body);
  };
  throw_first(run_forked(as_rank, at), at);
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
