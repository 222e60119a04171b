// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A stream runs work in the order it was given; an event marks a place in that order. Whatever starts work
// names the stream it runs on: there is no default one.
#pragma once

#include <concepts>
#include <cstddef>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// What a stream must offer. `run(f)` queues host work `f`, which is small and trivially copyable where the
/// stream is asynchronous; `record()` marks the present end of the queue; `wait(event)` makes later work
/// wait for a mark of this or another stream; `synchronize()` returns when all queued work is done.
template <class S>
concept stream = requires(S& s, void (*work)()) {
  typename S::event;
  s.run(work);
  { s.record() } -> std::same_as<typename S::event>;
  s.synchronize();
}
&&requires(S& s, const typename S::event& mark) {
  s.wait(mark);
  { mark.ready() } -> std::convertible_to<bool>;
};

/// Runs everything at once, on the thread that asks: the compute stream of a CPU rank.
class immediate_stream {
 public:
  struct event {
    [[nodiscard]] static constexpr bool ready() noexcept { return true; }
  };
  static constexpr bool runs_nothing = false;

  template <std::invocable Work>
  void run(Work&& work) {
    work();
  }
  [[nodiscard]] event record() const noexcept { return {}; }
  void wait(const event&) const noexcept {}
  void synchronize() const noexcept {}
};

/// Runs nothing: the stream of a rehearsal, in which only sizes and orders are real.
class rehearsal_stream {
 public:
  using event = immediate_stream::event;
  static constexpr bool runs_nothing = true;

  template <std::invocable Work>
  void run(Work&&) const noexcept {}
  [[nodiscard]] event record() const noexcept { return {}; }
  void wait(const event&) const noexcept {}
  void synchronize() const noexcept {}
};

static_assert(stream<immediate_stream> && stream<rehearsal_stream>);

}  // namespace belay::inline BELAY_ABI
