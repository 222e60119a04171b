// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// SIGTERM as a request: the run writes a checkpoint, then ends with exit code 75, which says "start me again". Ranks
// that are forked after this was made share it with the process that forked them.
//
//   const belay::stop_request stop;                       // before the ranks are started
//   belay::checkpoints saved{run, mesh, {.folder = "runs/a", .every = 50, .stop = &stop}};
//   ...
//   return stop.followed() ? belay::exit_code_of_a_stop : 0;
#pragma once

#include <atomic>

#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// EX_TEMPFAIL of sysexits.h: the run was stopped as asked, and goes on when it is started again.
inline constexpr int exit_code_of_a_stop = 75;

/// One in a process at a time. While it lives SIGTERM is noted and does nothing else.
class stop_request {
 public:
  /// Throws usage_error where there is one already, file_error where the system has no page for it.
  explicit stop_request(where at = where::current());
  stop_request(const stop_request&) = delete;
  stop_request& operator=(const stop_request&) = delete;
  ~stop_request();

  /// Whether a SIGTERM came, to this process or to one that shares it.
  [[nodiscard]] bool asked() const noexcept { return state_->asked.load(std::memory_order_relaxed); }
  /// As if one had come.
  void ask() const noexcept { state_->asked.store(true, std::memory_order_relaxed); }
  /// From here on SIGTERM does what it did before, in this process.
  void end() const noexcept;
  /// Whether a run has stopped for it, with its state on the medium.
  [[nodiscard]] bool followed() const noexcept { return state_->followed.load(std::memory_order_relaxed); }
  void note_followed() const noexcept { state_->followed.store(true, std::memory_order_relaxed); }

 private:
  struct request_state {
    std::atomic<bool> asked = false, followed = false;
  };
  static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<request_state*>::is_always_lock_free);

  static void note(int) {
    if (request_state* const here = requested_stop_.load()) here->asked.store(true, std::memory_order_relaxed);
  }

  static inline constinit std::atomic<request_state*> requested_stop_ = nullptr;

  request_state* state_;
  struct sigaction before_ = {};
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/train/stop_request.ipp"  // IWYU pragma: export
#endif
