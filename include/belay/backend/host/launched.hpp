// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A world of processes that somebody else has started, seen by one of them. belay-run holds the world itself; under
// any other launcher the first rank's process holds it beside its own work, and leaves a note for the others.
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
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "belay/backend/host/bootstrap/bootstrap_file.hpp"
#include "belay/backend/host/bootstrap/bootstrap_socket.hpp"
#include "belay/backend/host/bootstrap/client.hpp"
#include "belay/backend/host/bootstrap/coordinator.hpp"
#include "belay/backend/host/bootstrap/run_rank.hpp"
#include "belay/backend/host/bootstrap/world_monitor.hpp"
#include "belay/backend/host/membership/process_membership.hpp"
#include "belay/backend/host/membership/thread_membership.hpp"
#include "belay/backend/host/options.hpp"
#include "belay/comm/launch.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/unique_fd.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// A thread that waits for descriptors until it is told to stop.
class side_thread {
 public:
  /// Throws `file_error`.
  explicit side_thread(where at) : stop_(::eventfd(0, EFD_CLOEXEC)) {
    if (!stop_) throw file_error("eventfd", 0, error_text(errno), at);
  }
  side_thread(const side_thread&) = delete;
  side_thread& operator=(const side_thread&) = delete;
  ~side_thread() { stop(); }

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
  void join() noexcept {
    if (thread_.joinable()) thread_.join();
  }

 private:
  unique_fd stop_;
  std::thread thread_;
};

/// The world of the environment. `run(body)` calls `body(rank&)` once, in this process, as the rank that it is.
class launched_world {
 public:
  /// Throws `input_error` where the environment makes no sense (see find_launch), or where its ranks run on several
  /// hosts.
  explicit launched_world(world_options options = {}, where at = where::current())
      : found_(find_launch()), options_(checked_options(options, at)) {
    if (found_.several_hosts()) {
      throw input_error(
          found_.text() + ", of which " + std::to_string(found_.local_size) +
              " run on this host: the host backend joins the ranks of one host; use mpi (belay::mpi::world)",
          at);
    }
  }

  [[nodiscard]] int rank() const noexcept { return found_.rank; }
  [[nodiscard]] int size() const noexcept { return found_.size; }
  [[nodiscard]] const launch& found() const noexcept { return found_; }

  /// Runs the body as this process's rank and returns what it returns, or throws what it throws. The first rank under
  /// a launcher that is not belay-run returns when all others are done. May be called again where the launcher is not
  /// belay-run.
  template <class Body>
  auto run(Body&& body, where at = where::current()) const {
    using result = std::invoke_result_t<Body&, host::rank&>;
    if constexpr (std::is_void_v<result>) {
      run_once([&](host::rank& self) { body(self); }, at);
    } else {
      std::optional<result> out;
      run_once([&](host::rank& self) { out.emplace(body(self)); }, at);
      return std::move(*out);
    }
  }

 private:
  [[nodiscard]] time_point until() const {
    return std::chrono::steady_clock::now() +
           std::chrono::duration_cast<std::chrono::steady_clock::duration>(options_.timeout);
  }

  template <class Body>
  void run_once(Body body, where at) const {
    if (options_.pin == pinning::one_core_each) pin_to_core(found_.rank);
    if (found_.size == 1) {
      const auto members = std::make_shared<thread_membership>(1, options_);
      const run_result end = live(members->enter(0), members, body);
      members->end();
      return finish(end);
    }
    const char* const door = std::getenv("BELAY_DOOR");
    if (std::string(found_.launcher) == "belay-run") return run_held(door, body, at);
    if (found_.rank == 0) return run_holding(body, at);
    const bootstrap_file::content note = bootstrap_file::find(found_, until(), at);
    run_as_guest(note.door, note.secret, body, at);
  }

  template <class Body>
  void run_held(const char* door, Body body, where at) const {
    const char* const secret = std::getenv("BELAY_TOKEN_FD");
    if (door == nullptr || secret == nullptr) {
      throw input_error(
          std::string(door == nullptr ? "BELAY_DOOR" : "BELAY_TOKEN_FD") +
              " is not set, but other variables of belay-run are; BELAY_LAUNCHER=none starts a single rank",
          at);
    }
    char* end = nullptr;
    const long number = std::strtol(secret, &end, 10);
    if (*end != '\0' || number < 3 || number > 1 << 20) {
      throw input_error("BELAY_TOKEN_FD=" + std::string(secret) + ": expected the number of a descriptor", at);
    }
    run_as_guest(door, client::token_from_descriptor(static_cast<int>(number), until(), at), body, at);
  }

  template <class Body>
  void run_as_guest(const std::string& door, const token& secret, Body body, where at) const {
    const auto source = std::make_shared<process_member>(
        std::make_shared<client>(client::enter(door, secret, found_.rank, found_.size, until(), at)), options_.spins);
    const epoch_view seat = source->enter();
    side_thread watch(at);
    // The holder's end of the line closes with its process.
    watch.start([source](int stop) {
      pollfd either[] = {{source->coordinator().fd(), POLLRDHUP, 0}, {stop, POLLIN, 0}};
      while (::poll(either, 2, -1) < 0) {
      }
      if (either[1].revents == 0) source->lose_holder("the process that holds the shared memory is gone");
    });
    const run_result end = live(seat, source, body);
    exit_message last;
    if (end.error) {
      last.how = exit_message::outcome::failed;
      last.body = end.what;
    }
    watch.stop();
    try {
      source->coordinator().goodbye(last, until(), at);
    } catch (const comm_error&) {
      // What the body says comes first; and one that lived through the holder's end is not told of it again.
      if (!end.error && !seat.world->aborted()) throw;
    }
    finish(end);
  }

  // The first rank's process serves the others until each has said goodbye or is gone; not longer than the timeout
  // after its own end, and not for one that is stopped beyond the limit: that is an error of its own.
  template <class Body>
  void run_holding(Body body, where at) const {
    bootstrap_socket door = bootstrap_socket::open(at);
    const token secret = door.secret();
    const std::string path = door.path();
    world_monitor world(found_.size, options_);
    coordinator_options limits;
    limits.stall_limit = std::chrono::duration_cast<std::chrono::steady_clock::duration>(options_.stall_limit);
    coordinator<world_monitor> all(door, found_.size, world.first_control(), world, limits, at);
    std::optional<bootstrap_file> note(bootstrap_file::leave(found_, door, at));
    side_thread server(at);
    std::exception_ptr lost;
    server.start([&](int stop) {
      try {
        serve(all, world, note, stop, at);
      } catch (const std::exception& problem) {
        lost = std::current_exception();
        door.close();  // who waits at it is told
        world.give_up(std::string("the process of rank 0 cannot hold the world any more: ") + problem.what());
      }
    });
    try {
      run_as_guest(path, secret, body, at);
    } catch (...) {
      server.stop();
      throw;  // what the body says comes first
    }
    server.stop();
    if (lost) std::rethrow_exception(lost);
  }

  void serve(coordinator<world_monitor>& all, const world_monitor& world, std::optional<bootstrap_file>& note, int stop,
             where at) const {
    const auto done = [&] {
      for (int q = 0; q < found_.size; ++q) {
        if (!all.about(q).said_goodbye && !all.about(q).over) return false;
      }
      return true;
    };
    const auto one_stalls = [&] {
      for (int q = 0; q < found_.size; ++q) {
        if (all.about(q).told_stalled && !all.about(q).left()) return world.state().aborted();
      }
      return false;
    };
    time_point last = time_point::max();
    while (!done() && std::chrono::steady_clock::now() < last) {
      all.step(std::chrono::steady_clock::now() + std::chrono::milliseconds(20));
      if (all.all_joined()) note.reset();
      pollfd told{stop, POLLIN, 0};
      if (last == time_point::max() && ::poll(&told, 1, 0) > 0) last = until();
      if (last != time_point::max() && one_stalls()) world.state().raise({operation::none, 0, 0, 0, at});
    }
  }

  static void finish(const run_result& end) {
    if (end.error) std::rethrow_exception(end.error);
  }

  launch found_;
  world_options options_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
