// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A stream runs work in the order in which it was given. An event marks a point in that order. Everything that starts
// work names its stream; there is no default one.
//
//   belay::queue_stream compute, copies;
//   copies.run([=] { std::memcpy(to, from, bytes); });
//   compute.wait(copies.record());  // later work of `compute` begins when the copy is done
//   compute.run([=] { use(to); });
//   compute.synchronize();
#pragma once

#include <concepts>
#include <cstddef>

#include "belay/core/config.hpp"
#include "belay/device/stream_event.hpp"

namespace belay::inline BELAY_ABI {

/// What a stream must offer. `run(f)` queues host work `f`; an asynchronous stream needs it to be small and trivially
/// copyable. `record()` marks the current end of the queue. `wait(event)` makes later work wait for an event of any
/// stream. `synchronize()` returns when all queued work is done, and throws the first failure of it.
template <class S>
concept stream = requires(S& s, void (*work)(), const stream_event& mark) {
  s.run(work);
  { s.record() } -> std::same_as<stream_event>;
  s.wait(mark);
  s.synchronize();
};

/// Runs work at once, on the calling thread.
class immediate_stream {
 public:
  static constexpr bool runs_nothing = false;

  template <std::invocable Work>
  void run(Work&& work) {
    work();
  }
  [[nodiscard]] stream_event record() const noexcept { return {}; }
  void wait(const stream_event& mark) const { mark.synchronize(); }
  void synchronize() const noexcept {}
};

/// Runs nothing: the stream of a rehearsal, where only sizes and order matter.
class rehearsal_stream {
 public:
  static constexpr bool runs_nothing = true;

  template <std::invocable Work>
  void run(Work&&) const noexcept {}
  [[nodiscard]] stream_event record() const noexcept { return {}; }
  void wait(const stream_event&) const noexcept {}
  void synchronize() const noexcept {}
};

static_assert(stream<immediate_stream> && stream<rehearsal_stream>);

}  // namespace belay::inline BELAY_ABI
