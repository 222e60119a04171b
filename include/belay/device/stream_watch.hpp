// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Bounds of the waits for a rank's streams, and how long one of them goes on. The world that the rank is of gives a
// watch: how long a piece of work may run, and whether what it waits for can still come. A thread that waits asks it
// every 20 ms. A stream that was made without one waits for as long as it takes.
//
//   belay::host_stream compute({.policy = belay::stream_policy::queued, .watch = rank.watch()}, rank.number());
//   compute.run([=] { use(to); });
//   compute.synchronize();  // comm_error: the work takes longer than the world's timeout, or a peer has failed
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_event.hpp"

namespace belay::inline BELAY_ABI {

/// The bounds of one rank's waits, asked by threads that wait. Not by those that find what they wait for.
class stream_watch {
 public:
  /// One piece of work that runs for longer is stuck.
  [[nodiscard]] virtual std::chrono::steady_clock::duration limit() const noexcept = 0;
  /// The time by which that is measured: the world's.
  [[nodiscard]] virtual std::chrono::steady_clock::time_point now() const noexcept {
    return std::chrono::steady_clock::now();
  }
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

/// How long one wait for a stream goes on. The time in which that stream itself waits does not count: that wait ends by
/// its own patience, or by the limit of a communication. (No two streams wait for each other: an event marks what was
/// queued before.) Once the world has failed communications end soon, and what waits for them knows which: so who waits
/// for that leaves it the time.
class stream_patience {
 public:
  /// The time from one look at the stream to the next.
  static constexpr std::chrono::milliseconds slice{20};

  /// Whether one waits on, the work does not end, or it has failed.
  enum class verdict : std::uint8_t { goes_on, stuck, failed };

  /// The watch outlives it.
  explicit stream_patience(const stream_watch& watch) noexcept : watch_(&watch), since_(watch.now()) {}

  /// The verdict on a stream of this pace, seen now.
  [[nodiscard]] verdict look(const stream_pace& seen) noexcept {
    const auto now = watch_->now();
    const auto limit = watch_->limit();
    const bool waits = seen.now == stream_pace::activity::waits;
    if (seen.done != done_ || waits) since_ = now;
    done_ = seen.done;
    if (now - since_ >= limit) return verdict::stuck;
    if (!watch_->failed()) return verdict::goes_on;
    const auto on_machine = std::chrono::steady_clock::now();  // by which others come out of a world that has failed
    failed_at_ = lesser_of(failed_at_, on_machine);
    const auto most = waits ? limit : lesser_of<std::chrono::steady_clock::duration>(limit, grace);
    return on_machine - failed_at_ >= most ? verdict::failed : verdict::goes_on;
  }
  /// Throws unless the wait, of a rank's host or of its stream, goes on; `who()` says whose it is.
  template <class Who>
  void expect_more(const Who& who, const event_source& awaited, const where& at) {
    switch (look(awaited.pace())) {
      case verdict::goes_on: return;
      case verdict::failed: watch_->raise(at);
      case verdict::stuck: break;
    }
    const double seconds = std::chrono::duration<double>(watch_->limit()).count();
    watch_->give_up("rank " + std::to_string(watch_->rank()) + who() + " waits for its " + awaited.text() +
                        ": nothing of it has ended within " + std::to_string(seconds) + " s",
                    at);
  }

 private:
  static constexpr std::chrono::milliseconds grace{500};

  const stream_watch* watch_;
  std::uint64_t done_ = 0;
  std::chrono::steady_clock::time_point since_;
  std::chrono::steady_clock::time_point failed_at_ = largest_value<std::chrono::steady_clock::time_point>;
};

}  // namespace belay::inline BELAY_ABI
