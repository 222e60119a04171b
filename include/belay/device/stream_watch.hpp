// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What bounds the waits for a rank's streams. The world that the rank is of gives it: how long a piece of work may run,
// and whether what it waits for can still come. A stream that was made without one waits for as long as it takes.
//
//   belay::host_stream compute({.policy = belay::stream_policy::queued, .watch = rank.watch()}, rank.number());
//   compute.run([=] { use(to); });
//   compute.synchronize();  // comm_error: the work takes longer than the world's timeout, or a peer has failed
#pragma once

#include <chrono>
#include <string>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// Asked by threads that wait, for one rank. Not by those that find what they wait for.
class stream_watch {
 public:
  /// One piece of work that runs for longer is stuck.
  [[nodiscard]] virtual std::chrono::steady_clock::duration limit() const noexcept = 0;
  /// Whether the world has failed.
  [[nodiscard]] virtual bool failed() const noexcept = 0;
  /// Throws its first cause, to the wait at `at`. Only after `failed()`.
  [[noreturn]] virtual void raise(where at) const = 0;
  /// Fails the world, because this rank is stuck as `what` says, and throws the first cause to the wait at `at`.
  [[noreturn]] virtual void give_up(const std::string& what, where at) const = 0;
  /// Fails the world, because this rank has met what `what` says, which was `thrown`. From any thread.
  virtual void fail(error_kind thrown, const std::string& what, where at) const = 0;
  /// The rank's number in its world.
  [[nodiscard]] virtual int rank() const noexcept = 0;

 protected:
  ~stream_watch() = default;
};

}  // namespace belay::inline BELAY_ABI
