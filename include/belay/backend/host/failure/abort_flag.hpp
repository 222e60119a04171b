// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The protocol by which a world stops: one caller becomes the first, writes the cause, and only then is the world
// stopped for all ranks. A later caller gets the cause that the first one wrote.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <atomic>
#include <cstdint>

#include "belay/core/config.hpp"
#include "belay/core/policies.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

template <atomics_policy Atomics = std_atomics>
class abort_flag {
 public:
  [[nodiscard]] bool aborted(std::memory_order order = std::memory_order_acquire) const noexcept {
    return aborted_.load(order) != 0;
  }

  static constexpr std::uint32_t most_writer = 0x7fffffff;

  /// `write()` writes the cause, unless the world has stopped before: true when it has become the first cause.
  /// `notify()` wakes all waiting ranks. On return the world is stopped, also if the first caller was killed in here.
  /// `writer` is a number by which others can tell whether the caller lives, at most `most_writer`.
  template <class Write, class Notify>
  bool abort(std::uint32_t writer, Write write, Notify notify) noexcept {
    std::uint32_t state = none;
    bool first = cause_.compare_exchange_strong(state, being_written | writer, std::memory_order_relaxed);
    if (first) {
      write();
      state = being_written | writer;
      first = cause_.compare_exchange_strong(state, written, std::memory_order_release, std::memory_order_relaxed);
    }
    aborted_.store(1, std::memory_order_seq_cst);
    notify();
    return first;
  }

  /// Whether the cause has been written, and may be read. While its writer is at it, `go_on(writer)` is asked; when
  /// that is false, the writer is taken for dead, and no rank ever gets a cause.
  template <class GoOn>
  [[nodiscard]] bool cause_is_written(GoOn go_on) noexcept {
    std::uint32_t state = cause_.load(std::memory_order_acquire);
    while (is_being_written(state) && go_on(state & most_writer)) {
      Atomics::yield();
      state = cause_.load(std::memory_order_acquire);
    }
    if (is_being_written(state)) {
      cause_.compare_exchange_strong(state, lost, std::memory_order_acquire);
    }
    return state == written;
  }

  /// The survivors have gone on elsewhere. Before the world is stopped, or afterwards.
  void revoke() noexcept { revoked_.store(1, std::memory_order_release); }
  [[nodiscard]] bool revoked() const noexcept { return revoked_.load(std::memory_order_acquire) != 0; }

 private:
  // With the highest bit the others are the writer.
  enum : std::uint32_t { none, written, lost, being_written = most_writer + 1 };

  [[nodiscard]] static bool is_being_written(std::uint32_t state) noexcept { return (state & being_written) != 0; }

  typename Atomics::template atomic<std::uint32_t> aborted_{0};
  typename Atomics::template atomic<std::uint32_t> cause_{none};
  typename Atomics::template atomic<std::uint32_t> revoked_{0};
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
