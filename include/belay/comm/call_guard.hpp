// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rank belongs to one thread, of one process, while its run lasts. In checked builds a call that breaks this is an
// error, which names the line of the call in progress, before anything of it reaches a peer. So is the call after the
// handle of a started communication was lost: those are counted in their destructors.
// IWYU pragma: private, include "belay/comm.hpp"
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/process.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// The guard of a rank's calls. Any thread may call anything.
class call_guard {
 public:
  /// `home` may be null: then any process is the rank's.
  call_guard(std::shared_ptr<const own_process> home, int rank) noexcept : home_(std::move(home)), rank_(rank) {}
  call_guard(const call_guard&) = delete;
  call_guard& operator=(const call_guard&) = delete;

  /// Whether this is the rank's process, not a forked child of it.
  [[nodiscard]] bool in_own_process() const noexcept { return home_ == nullptr || home_->here(); }

  /// The rank's run is over.
  void end() noexcept { over_.store(true, std::memory_order_release); }

  /// Throws usage_error in a forked child, and after the rank's run. Also in release builds, where a call affords it.
  void expect_usable(const char* what, const where& at) const {
    if (!in_own_process()) refuse_child(what, at);
    if (over_.load(std::memory_order_acquire)) refuse_late(what, at);
  }

  /// A call that has the rank to itself while this lives. Throws usage_error while another thread's call lasts.
  class checked_entry {
   public:
    checked_entry(call_guard& guard, const char* what, const where& at) : checked_entry(&guard, what, at) {}
    /// Of a rank that may have no guard: null.
    checked_entry(call_guard* guard, const char* what, const where& at) : guard_(guard) {
      if (guard_ != nullptr) guard_->enter(what, at);
    }
    checked_entry(const checked_entry&) = delete;
    checked_entry& operator=(const checked_entry&) = delete;
    ~checked_entry() {
      if (guard_ != nullptr) guard_->exit();
    }

   private:
    call_guard* guard_;
  };
  struct [[maybe_unused]] unchecked_entry {
    unchecked_entry(call_guard&, const char*, const where&) noexcept {}
    unchecked_entry(call_guard*, const char*, const where&) noexcept {}
  };
  using scoped_entry = std::conditional_t<checked(check_level::local), checked_entry, unchecked_entry>;

 private:
  void enter(const char* what, const where& at) {
    expect_usable(what, at);  // before the lock, which may have been locked at the fork
    const std::lock_guard lock(mutex_);
    if (current_ != nullptr) {
      throw usage_error(std::string(what) + ": another thread of rank " + std::to_string(rank_) + " is in the " +
                            current_ + " called at " + at_.text() + "; a rank makes one call at a time",
                        at);
    }
    current_ = what;
    at_ = at;
  }
  void exit() noexcept {
    const std::lock_guard lock(mutex_);
    current_ = nullptr;
  }

  [[noreturn, gnu::cold, gnu::noinline]] void refuse_child(const char* what, const where& at) const {
    throw usage_error(std::string(what) + ": this process is a forked child of rank " + std::to_string(rank_) +
                          " (process " + std::to_string(home_->number()) + "), and no rank: it may exec or _exit",
                      at);
  }
  [[noreturn, gnu::cold, gnu::noinline]] void refuse_late(const char* what, const where& at) const {
    throw usage_error(std::string(what) + ": the run of rank " + std::to_string(rank_) +
                          " is over; its groups, handles and heaps are for its body",
                      at);
  }

  std::shared_ptr<const own_process> home_;
  int rank_;
  std::atomic<bool> over_{false};
  std::mutex mutex_;  // of checked builds, as what follows
  const char* current_ = nullptr;
  where at_;
};

/// Handles of started communications of a rank that nobody has waited for, said by the next call of the rank in checked
/// builds. Of any thread.
class lost_handles {
 public:
  void note(where started_at) noexcept;
  [[nodiscard]] std::uint64_t count() const noexcept;
  /// Throws usage_error of the last, once, in checked builds.
  void tell([[maybe_unused]] const where& at);

 private:
  mutable std::mutex mutex_;
  std::uint64_t count_ = 0;
  bool unreported_ = false;
  where last_at_;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/call_guard.ipp"  // IWYU pragma: export
#endif
