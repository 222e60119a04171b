// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The protocol by which a world stops: one caller becomes the first to say why, writes it, and only then is the world
// stopped for everybody; who comes later gets what the first one wrote.
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

  /// `write()` writes why, if nobody has stopped the world before: true when that has become the first cause. `ring()`
  /// wakes all who wait. On return the world is stopped, also if the one who was first has been killed at it.
  template <class Write, class Ring>
  bool abort(Write write, Ring ring) noexcept {
    std::uint32_t state = untold;
    bool first = cause_.compare_exchange_strong(state, being_told, std::memory_order_relaxed);
    if (first) {
      write();
      state = being_told;
      first = cause_.compare_exchange_strong(state, told, std::memory_order_release, std::memory_order_relaxed);
    }
    aborted_.store(1, std::memory_order_seq_cst);
    ring();
    return first;
  }

  /// Why the world stopped has been written, and may be read. While somebody still writes it, `patient()` is asked;
  /// when that says false, he is taken for dead, and nobody ever gets a cause.
  template <class Patient>
  [[nodiscard]] bool is_told(Patient patient) noexcept {
    std::uint32_t state = cause_.load(std::memory_order_acquire);
    while (state == being_told && patient()) {
      Atomics::yield();
      state = cause_.load(std::memory_order_acquire);
    }
    if (state == being_told) {
      cause_.compare_exchange_strong(state, lost, std::memory_order_acquire);
    }
    return state == told;
  }

  /// The survivors have gone on elsewhere. Before the world is stopped, or afterwards.
  void revoke() noexcept { revoked_.store(1, std::memory_order_release); }
  [[nodiscard]] bool revoked() const noexcept { return revoked_.load(std::memory_order_acquire) != 0; }

 private:
  enum : std::uint32_t { untold, being_told, told, lost };

  typename Atomics::template atomic<std::uint32_t> aborted_{0};
  typename Atomics::template atomic<std::uint32_t> cause_{untold};
  typename Atomics::template atomic<std::uint32_t> revoked_{0};
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
