// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A stream runs work in the order in which it was given. An event marks a point in that order. Everything that starts
// work names its stream; there is no default one.
//
//   belay::immediate_stream compute, copies;
//   copies.run([&] { std::memcpy(to, from, bytes); });
//   compute.wait(copies.record());  // later work of `compute` begins when the copy is done
//   compute.run([&] { use(to); });
//   compute.synchronize();
#pragma once

#include <concepts>
#include <cstddef>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// What a stream must offer. `run(f)` queues host work `f`; an asynchronous stream needs it to be small and trivially
/// copyable. `record()` marks the current end of the queue. `wait(event)` makes later work wait for an event of any
/// stream. `synchronize()` returns when all queued work is done.
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

/// Runs work at once, on the calling thread: the compute stream of a CPU rank.
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

/// Runs nothing: the stream of a rehearsal, where only sizes and order matter.
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
