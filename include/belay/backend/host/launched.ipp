// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How a launched rank finds its coordinator, or is the coordinator beside its own work.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <thread>

#include "belay/backend/host/bootstrap/bootstrap_socket.hpp"
#include "belay/backend/host/bootstrap/client.hpp"
#include "belay/backend/host/bootstrap/coordinator.hpp"
#include "belay/backend/host/bootstrap/world_monitor.hpp"
#include "belay/backend/host/launched.hpp"
#include "belay/backend/host/membership/process_membership.hpp"
#include "belay/backend/host/membership/thread_membership.hpp"
#include "belay/backend/host/rank.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/error.hpp"
#include "belay/core/process.hpp"
#include "belay/core/unique_fd.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

// A thread that waits for descriptors until it is told to stop.
class polling_thread {
 public:
  /// Throws `file_error`.
  explicit polling_thread(where at) : stop_(::eventfd(0, EFD_CLOEXEC)) {
    if (!stop_) throw file_error("eventfd", 0, error_text(errno), at);
  }
  polling_thread(const polling_thread&) = delete;
  polling_thread& operator=(const polling_thread&) = delete;
  ~polling_thread() { stop(); }

  /// Runs `work(stop)` once; `stop` becomes readable when it shall end.
  template <class Work>
  void start(Work work) {
    thread_ = std::thread([this, work]() mutable { work(stop_.get()); });
  }
  void stop() noexcept {
    if (!thread_.joinable()) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
    thread_.join();
  }

 private:
  unique_fd stop_;
  std::thread thread_;
};

// One run of a launched rank.
struct launched_run {
  const launcher_environment& found;
  const world_options& options;
  function_ref<void(rank&)> body;
  where at;

  [[nodiscard]] time_point until() const {
    return time_by(options.clock) + std::chrono::duration_cast<time_point::duration>(options.timeout);
  }
  void under_belay_run() const;
  void as_client(const std::string& socket_path, const token& secret) const;
  void as_coordinator() const;
  void serve(coordinator& ranks, const world_monitor& world, std::optional<bootstrap_file>& file, int stop) const;
};

BELAY_DECL launched_world::launched_world(world_options options, where at)
    : found_(find_launcher()), options_(checked_options(options, at)) {
  if (found_.several_hosts()) {
    throw input_error(
        found_.text() + ", of which " + std::to_string(found_.local_size) +
            " run on this host: the host backend joins the ranks of one host; use mpi (belay::mpi::world)",
        at);
  }
}

BELAY_DECL void launched_world::run_once(function_ref<void(host::rank&)> body, where at) const {
  for (const char* old : {"BELAY_DOOR", "BELAY_TOKEN_FD"})
    if (environment_variable(old) != nullptr)
      throw input_error(std::string(old) +
                            " is set, which BELAY_BOOTSTRAP_SOCKET and BELAY_BOOTSTRAP_SECRET_FD replace: "
                            "start by the belay-run of this version",
                        at);
  const launched_run run{found_, options_, body, at};
  if (options_.pin == pinning::one_core_each) pin_to_core(found_.rank);
  if (found_.size == 1) {
    const auto members = std::make_shared<thread_membership>(1, options_);
    const run_result end = run_rank_body(members->enter(0), members, body);
    members->end();
    return end.rethrow();
  }
  if (std::string(found_.launcher) == "belay-run") return run.under_belay_run();
  if (found_.rank == 0) return run.as_coordinator();
  const bootstrap_file::content file = bootstrap_file::find(found_, run.until(), at, options_.clock);
  run.as_client(file.socket_path, file.secret);
}

BELAY_DECL void launched_world::run_ranks(function_ref<void(belay::rank&)> body, where at) const {
  const auto as_rank = [&](host::rank& self) {
    belay::rank of_body(self);
    body(of_body);
  };
  run_once(as_rank, at);
}

BELAY_DECL void launched_run::under_belay_run() const {
  const char* const socket_path = environment_variable("BELAY_BOOTSTRAP_SOCKET");
  const char* const secret = environment_variable("BELAY_BOOTSTRAP_SECRET_FD");
  if (socket_path == nullptr || secret == nullptr) {
    throw input_error(std::string(socket_path == nullptr ? "BELAY_BOOTSTRAP_SOCKET" : "BELAY_BOOTSTRAP_SECRET_FD") +
                          " is not set, but other variables of belay-run are; BELAY_LAUNCHER=none starts a single rank",
                      at);
  }
  char* end = nullptr;
  const long number = std::strtol(secret, &end, 10);
  if (*end != '\0' || number < 3 || number > 1 << 20) {
    throw input_error("BELAY_BOOTSTRAP_SECRET_FD=" + std::string(secret) + ": expected the number of a descriptor", at);
  }
  as_client(socket_path, client::token_from_descriptor(static_cast<int>(number), until(), at, options.clock));
}

BELAY_DECL void launched_run::as_client(const std::string& socket_path, const token& secret) const {
  const auto source = std::make_shared<process_membership>(
      client::enter(socket_path, secret, found.rank, found.size, until(), at, options.clock), options.spins);
  const epoch_view view = source->enter();
  polling_thread watch(at);
  // The coordinator's end of the connection closes with its process.
  watch.start([source](int stop) {
    pollfd either[] = {{source->coordinator_client().fd(), POLLRDHUP, 0}, {stop, POLLIN, 0}};
    while (::poll(either, 2, -1) < 0) {
    }
    if (either[1].revents == 0) source->lose_coordinator("the process that holds the shared memory is gone");
  });
  const run_result end = run_rank_body(view, source, body);
  exit_message last;
  if (end.error) {
    last.how = exit_message::outcome::failed;
    last.body = end.what;
  }
  watch.stop();
  try {
    source->coordinator_client().goodbye(last, until(), at);
  } catch (const comm_error&) {
    // The body's error comes first; and the end of the coordinator is not reported twice.
    if (!end.error && !view.world->aborted()) throw;
  }
  end.rethrow();
}

// The first rank's process serves the others until each has said goodbye or is gone; not longer than the timeout
// after its own end, and not for one that is stopped beyond the limit: that is an error of its own.
BELAY_DECL void launched_run::as_coordinator() const {
  bootstrap_socket socket = bootstrap_socket::open(at);
  const token secret = socket.secret();
  const std::string path = socket.path();
  world_monitor world(found.size, options);
  coordinator_options limits;
  limits.stall_limit = std::chrono::duration_cast<time_point::duration>(options.stall_limit);
  limits.clock = options.clock;
  coordinator ranks(socket, found.size, world.first_control_block(), world, limits, at);
  std::optional<bootstrap_file> file(bootstrap_file::write(found, socket, at));
  polling_thread server(at);
  std::exception_ptr lost;
  server.start([&](int stop) {
    try {
      serve(ranks, world, file, stop);
    } catch (const std::exception& problem) {
      lost = std::current_exception();
      socket.close();  // ends the waits of ranks that are joining
      world.give_up(std::string("the process of rank 0 cannot hold the world any more: ") + problem.what());
    }
  });
  try {
    as_client(path, secret);
  } catch (...) {
    server.stop();
    throw;  // the body's error comes first
  }
  server.stop();
  if (lost) std::rethrow_exception(lost);
}

BELAY_DECL void launched_run::serve(coordinator& ranks, const world_monitor& world, std::optional<bootstrap_file>& file,
                                    int stop) const {
  const auto done = [&] {
    for (int q = 0; q < found.size; ++q) {
      if (!ranks.about(q).said_goodbye && !ranks.about(q).over) return false;
    }
    return true;
  };
  const auto one_stalls = [&] {
    for (int q = 0; q < found.size; ++q) {
      if (ranks.about(q).told_stalled && !ranks.about(q).left()) return world.state().aborted();
    }
    return false;
  };
  time_point last = largest_value<time_point>;
  while (!done() && time_by(options.clock) < last) {
    ranks.step(time_by(options.clock) + std::chrono::milliseconds(20));
    if (ranks.all_joined()) file.reset();
    pollfd stopped{stop, POLLIN, 0};
    if (last == largest_value<time_point> && ::poll(&stopped, 1, 0) > 0) last = until();
    if (last != largest_value<time_point> && one_stalls()) world.state().raise({operation::none, 0, 0, 0, at});
  }
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
