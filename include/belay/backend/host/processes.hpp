// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A world of ranks that are processes of this machine, forked from this one. A rank that is killed, stopped or lost in
// a loop takes nothing with it: the others get an error that names it, and this process, which is no rank, learns how
// each ended. Children die with it.
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
#include <concepts>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/host/bootstrap/bootstrap_socket.hpp"
#include "belay/backend/host/bootstrap/client.hpp"
#include "belay/backend/host/bootstrap/coordinator.hpp"
#include "belay/backend/host/bootstrap/run_rank.hpp"
#include "belay/backend/host/bootstrap/world_monitor.hpp"
#include "belay/backend/host/failure/watched_process.hpp"
#include "belay/backend/host/membership/process_membership.hpp"
#include "belay/backend/host/options.hpp"
#include "belay/backend/host/rank.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// What a body may return from another process: plain data, or text.
template <class T>
concept sendable_result = std::is_void_v<T> || std::is_trivially_copyable_v<T> || std::same_as<T, std::string>;

/// `processes{4}.run(body)` calls `body(rank&)` in four processes, each a rank, with a copy of all this process has.
/// Can be run again.
class processes {
 public:
  /// Throws `usage_error` if there is no rank, `input_error` if BELAY_TIMEOUT makes no sense.
  explicit processes(int ranks, world_options options = {}, where at = where::current())
      : ranks_(ranks), options_(checked_options(options, at)) {
    if (ranks < 1) throw usage_error("a world of " + std::to_string(ranks) + " ranks", at);
  }

  [[nodiscard]] int size() const noexcept { return ranks_; }

  /// Runs the body on every rank and returns when all processes are gone: nothing, or the bodies' results by rank. If
  /// a rank failed, throws `comm_error` with the first cause: who, in which operation, by which signal or exit code.
  /// Throws `usage_error` when other threads of this process are alive, which a fork would tear in two;
  /// `budget_error` when there is too little memory for what the ranks share; `file_error`, which names RLIMIT_NOFILE,
  /// when descriptors run out. No child stays, however it ends.
  template <class Body>
  auto run(Body&& body, where at = where::current()) const {
    using result = std::invoke_result_t<Body&, rank&>;
    std::vector<rank_outcome> ends = outcomes(body, at);
    throw_first(ends, at);
    if constexpr (!std::is_void_v<result>) {
      std::vector<result> results;
      results.reserve(ends.size());
      for (rank_outcome& end : ends) results.push_back(decoded<result>(std::move(end.result)));
      return results;
    }
  }

  /// The same, but tells how each rank ended instead of throwing.
  template <class Body>
  [[nodiscard]] std::vector<rank_outcome> outcomes(Body&& body, where at = where::current()) const {
    using result = std::invoke_result_t<Body&, rank&>;
    static_assert(
        sendable_result<result>,
        "what a rank returns from its process is trivially copyable or a std::string; send the rest to rank 0");
    expect_one_thread(at);
    last_cause_.reset();
    bootstrap_socket door = bootstrap_socket::open(at);
    world_monitor watch(ranks_, options_);
    coordinator<world_monitor> all(door, ranks_, watch.first_control(), watch, holder_limits(), at);
    children mine(all, ranks_);
    std::fflush(nullptr);  // what is buffered is not to be written by every child
    const pid_t parent = ::getpid();
    for (int number = 0; number < ranks_; ++number) {
      const pid_t child = ::fork();
      if (child == 0) {
        // Nothing of the parent's ends here, least of all what it will still clean up.
        live(parent, door, watch, number, body);
      }
      if (child < 0) {
        const std::string why = error_text(errno);
        throw budget_error("processes (" + why + ")", static_cast<std::size_t>(ranks_),
                           static_cast<std::size_t>(number), at);
      }
      mine.add(child);
      all.expect(number, child);
    }
    see_them_end(all, watch);
    if (const world_status* const failed = watch.failed()) last_cause_ = failed->original_cause();
    return watch.outcomes();
  }

 private:
  // The forked, by rank. However their parent leaves, none of them stays, not even as a zombie.
  class children {
   public:
    children(const coordinator<world_monitor>& all, int ranks) : all_(&all) {
      forked_.reserve(static_cast<std::size_t>(ranks));
    }
    children(const children&) = delete;
    children& operator=(const children&) = delete;
    ~children() {
      for (std::size_t rank = 0; rank < forked_.size(); ++rank) {
        if (all_->about(static_cast<int>(rank)).child_gone) continue;  // reaped; its number may be another's
        ::kill(forked_[rank], SIGKILL);
        while (::waitpid(forked_[rank], nullptr, 0) < 0 && errno == EINTR) {
        }
      }
    }

    void add(pid_t child) noexcept { forked_.push_back(child); }

   private:
    const coordinator<world_monitor>* all_;
    std::vector<pid_t> forked_;
  };

  [[nodiscard]] coordinator_options holder_limits() const {
    coordinator_options out;
    out.stall_limit = std::chrono::duration_cast<std::chrono::steady_clock::duration>(options_.stall_limit);
    return out;
  }

  [[nodiscard]] static int threads_alive() {
    int threads = 0;
    if (DIR* const list = ::opendir("/proc/self/task")) {
      while (const dirent* const entry = ::readdir(list)) threads += entry->d_name[0] != '.';
      ::closedir(list);
    }
    return threads;
  }
  static void expect_one_thread(where at) {
    // One that has been joined is listed until the kernel has done with it.
    const auto patient_until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    int threads = threads_alive();
    for (; threads > 1 && std::chrono::steady_clock::now() < patient_until; threads = threads_alive()) ::sched_yield();
    if (threads > 1) {
      throw usage_error("ranks as processes are forked, and " + std::to_string(threads - 1) +
                            " other threads of this process are alive: they would hold their locks in the children for "
                            "ever; start the ranks first, or use belay-run",
                        at);
    }
  }

  // Whether some rank of a world that has not failed still lives.
  [[nodiscard]] static bool survivors_go_on(const coordinator<world_monitor>& all, const world_monitor& watch) {
    const auto lives = [&](int rank) { return all.about(rank).alive() != nullptr; };
    return !watch.state().aborted() && std::any_of(watch.members().begin(), watch.members().end(), lives);
  }

  // Until all are gone. Once the world has failed, one that is stopped when the others are over is not waited for; nor
  // is one that has not noticed within the time that a call may take, or 5 seconds: a core may be long in coming.
  void see_them_end(coordinator<world_monitor>& all, const world_monitor& watch) const {
    using clock = std::chrono::steady_clock;
    const auto spin_policy = std::chrono::duration_cast<clock::duration>(
        std::max<std::chrono::duration<double>>(options_.timeout, std::chrono::seconds(5)));
    auto failed_at = clock::time_point::max();
    while (!all.all_over()) {
      all.step(clock::now() + std::chrono::milliseconds(50));
      if (watch.failed() == nullptr || survivors_go_on(all, watch)) {
        failed_at = clock::time_point::max();
        continue;
      }
      const auto now = clock::now();
      if (failed_at == clock::time_point::max()) failed_at = now;
      bool some_run = false;
      for (int q = 0; q < ranks_; ++q) {
        const watched_process* const living = all.about(q).alive();
        some_run = some_run || (living != nullptr && !living->stopped());
      }
      if (some_run && now - failed_at < spin_policy) continue;
      for (int q = 0; q < ranks_; ++q) all.send_signal(q, SIGKILL);
    }
  }

  template <class Result>
  [[nodiscard]] static Result decoded(std::string bytes) {
    if constexpr (std::same_as<Result, std::string>) {
      return bytes;
    } else {
      alignas(Result) std::byte storage[sizeof(Result)] = {};
      std::memcpy(storage, bytes.data(), bytes.size() < sizeof(Result) ? bytes.size() : sizeof(Result));
      return *std::launder(reinterpret_cast<Result*>(storage));
    }
  }

  void throw_first(const std::vector<rank_outcome>& ends, where at) const {
    int first = -1;
    for (int q = 0; q < ranks_ && first < 0; ++q) {
      if (ends[static_cast<std::size_t>(q)].how != rank_outcome::kind::returned) first = q;
    }
    if (first < 0) return;
    comm_error::details what;
    what.fault = comm_fault::peer_failed;
    what.culprits = {first};
    what.message = "rank " + std::to_string(first) + " " + ends[static_cast<std::size_t>(first)].text();
    what.operation = "processes::run";
    what.here = at;
    if (last_cause_) {
      what.fault = last_cause_->fault;
      what.culprits = last_cause_->culprits;
      what.message = last_cause_->message;
      what.there = last_cause_->there;
      what.signal = last_cause_->signal;
      what.exit_code = last_cause_->exit_code;
    }
    throw comm_error(std::move(what));
  }

  // The child's life: it never returns.
  template <class Body>
  [[noreturn]] void live(pid_t parent, const bootstrap_socket& door, world_monitor& watch, int number,
                         Body& body) const {
    int code = 1;
    bool joined = false;
    try {
      if (!end_with_parent(parent)) ::_exit(1);
      if (options_.pin == pinning::one_core_each) pin_to_core(number);
      // The holder may be writing a flight file just then.
      const auto spin_policy = std::max<std::chrono::duration<double>>(options_.timeout, std::chrono::seconds(10));
      const auto until = [&] {
        return std::chrono::steady_clock::now() +
               std::chrono::duration_cast<std::chrono::steady_clock::duration>(spin_policy);
      };
      const auto source = std::make_shared<process_member>(
          std::make_shared<client>(client::enter(door.path(), door.secret(), number, ranks_, until())), options_.spins);
      joined = true;
      const exit_message last = run_body(source, body);
      code = last.how == exit_message::outcome::returned ? 0 : 1;
      source->coordinator().goodbye(last, until());
    } catch (const std::exception& problem) {
      std::fprintf(stderr, "belay: rank %d: %s\n", number, printable_what(problem).c_str());
      // Without a line to say it over: the parent's world is in memory that this process has shared since its birth.
      if (!joined) watch.could_not_join(number, message_of(problem));
    }
    std::fflush(nullptr);
    ::_exit(code);
  }

  template <class Body>
  [[nodiscard]] static exit_message run_body(const std::shared_ptr<process_member>& source, Body& body) {
    using result = std::invoke_result_t<Body&, rank&>;
    exit_message last;
    const run_result end = host::live(source->enter(), source, [&](rank& self) {
      if constexpr (std::is_void_v<result>) {
        body(self);
      } else {
        const result value = body(self);
        if constexpr (std::same_as<result, std::string>)
          last.body = value;
        else
          last.body.assign(reinterpret_cast<const char*>(&value), sizeof value);
      }
    });
    if (!end.error) return last;
    last.how = exit_message::outcome::failed;
    last.body = end.what;
    return last;
  }

  int ranks_;
  world_options options_;
  mutable std::optional<abort_cause> last_cause_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
