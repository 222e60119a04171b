// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The communication stream of a rank: one thread that runs started operations in launch order, while the rank
// computes. It exists from the first start on. Commands have a fixed size and live in a fixed ring, so that
// starting allocates nothing.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "belay/backend/host/failure/world_status.hpp"
#include "belay/backend/host/rendezvous/group_state.hpp"
#include "belay/comm/buffers_in_flight.hpp"
#include "belay/comm/call_guard.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/submission_queue.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Used by the rank's own thread; kept by its groups and by what was started.
class async_stream final : public completion_source, public std::enable_shared_from_this<async_stream> {
 public:
  /// So many operations may be in flight; one more waits for the oldest.
  static constexpr std::size_t capacity = 128;
  /// Bytes of a command's arguments.
  static constexpr std::size_t command_room = 152;

  async_stream(std::shared_ptr<world_status> world, int rank) noexcept
      : world_(std::move(world)), rank_(rank), guard_(world_->home(), rank) {}
  async_stream(const async_stream&) = delete;
  async_stream& operator=(const async_stream&) = delete;
  ~async_stream() { finish(); }

  /// Queues `work(group_state&)`, small and trivially copyable. Throws like a call on the group.
  template <class Work>
  requires(sizeof(Work) <= command_room && std::is_trivially_copyable_v<Work>) pending
      launch(operation what, const std::shared_ptr<group_state>& group, Work work, const buffer_use& buffers,
             where at) {
    guard_.expect_usable(name(what), at);
    const call_guard::entry mine(guard_, name(what), at);
    report_abandoned(at);
    const std::uint64_t ticket = queue_.next();
    if (world_->aborted()) world_->raise({what, 0, ticket - 1, 0, at});
    if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
    if (ticket > capacity) settle(ticket - capacity);
    command& slot = ring_[ticket % capacity];
    slot.group = group;
    ::new (static_cast<void*>(slot.storage)) Work(work);
    slot.run = [](command& self) { (*std::launder(reinterpret_cast<Work*>(self.storage)))(*self.group); };
    if constexpr (checked(check_level::local)) {
      const std::lock_guard lock(notes_);
      in_flight_.add(ticket, buffers, what, at);
    }
    queue_.launch(ticket);
    return pending(shared_from_this(), ticket, what, at);
  }

  [[nodiscard]] bool ready(std::uint64_t ticket) const noexcept override { return queue_.completed(ticket); }

  void wait(std::uint64_t ticket, operation what, where at) override {
    guard_.expect_usable(name(what), at);
    const call_guard::entry mine(guard_, name(what), at);
    settle(ticket);
    if constexpr (checked(check_level::local)) {
      const std::lock_guard lock(notes_);
      in_flight_.remove(ticket);
    }
    if (ticket > failed_after_.load(std::memory_order_acquire)) world_->raise({what, 0, ticket - 1, 0, at});
  }

  /// From any thread: a handle may be lost where it was refused.
  void abandon(std::uint64_t ticket, where started_at) noexcept override {
    const std::lock_guard lock(notes_);
    if constexpr (checked(check_level::local)) in_flight_.remove(ticket);
    ++abandoned_;
    unreported_ = true;
    abandoned_at_ = started_at;
  }

  /// Started communications of this rank whose handle was lost.
  [[nodiscard]] std::uint64_t abandoned() const noexcept {
    const std::lock_guard lock(notes_);
    return abandoned_;
  }

  /// In checked builds, the first call after a handle was lost says so.
  void report_abandoned(where at) {
    if constexpr (checked(check_level::local)) {
      const std::lock_guard lock(notes_);
      if (!std::exchange(unreported_, false)) return;
      throw usage_error("the communication started at " + abandoned_at_.text() +
                            " was never waited for; its buffers may still be in use",
                        at);
    }
  }

  /// In checked builds a call must not touch what is lent to a started operation. (Another one that is started may: it
  /// runs after that.)
  void expect_free([[maybe_unused]] operation by, [[maybe_unused]] const buffer_use& buffers,
                   [[maybe_unused]] const where& at) const {
    if constexpr (checked(check_level::local)) {
      const std::lock_guard lock(notes_);
      in_flight_.expect_free(buffers, by, at);
    }
  }

  /// One call of the rank at a time.
  [[nodiscard]] call_guard& guard() noexcept { return guard_; }

  /// Runs what is queued and ends the thread, which a forked child has not.
  void finish() noexcept {
    if (!thread_.joinable()) return;
    if (!guard_.in_own_process()) return thread_.detach();
    queue_.end();
    thread_.join();
  }
  /// The same, for good: what still holds this cannot call any more.
  void end() noexcept {
    finish();
    guard_.end();
  }

 private:
  struct command {
    void (*run)(command&) = nullptr;
    std::shared_ptr<group_state> group;
    alignas(16) std::byte storage[command_room];
  };

  // The stream never leaves a ticket open: an operation that fails ends all later ones, in the first cause.
  void settle(std::uint64_t ticket) noexcept { queue_.settle(ticket, world_->before_sleep(lane::caller)); }

  void serve() noexcept {
    while (const std::uint64_t ticket = queue_.await(world_->before_sleep(lane::stream))) {
      command& now = ring_[ticket % capacity];
      if (!failed()) run(now, ticket);
      now.group.reset();
      queue_.complete(ticket);
    }
  }

  [[nodiscard]] bool failed() const noexcept { return failed_after_.load(std::memory_order_relaxed) != none_failed; }

  void run(command& now, std::uint64_t ticket) noexcept {
    try {
      now.run(now);
      return;
    } catch (const comm_error&) {
      // The world keeps the cause.
    } catch (const std::exception& slip) {
      stop(message_of(slip));
    } catch (...) {
      stop("an exception that is no std::exception");
    }
    failed_after_.store(ticket - 1, std::memory_order_release);
  }

  void stop(const char* problem) {
    const std::string who = "rank " + std::to_string(rank_);
    world_->abort({comm_fault::peer_failed, {rank_}, who + " started an operation that throws: " + problem, ""});
  }

  static constexpr std::uint64_t none_failed = ~std::uint64_t{0};

  std::shared_ptr<world_status> world_;
  int rank_;
  mutable std::mutex notes_;  // of what is lent and what was lost
  call_guard guard_;
  std::thread thread_;
  std::array<command, capacity> ring_{};
  submission_queue<> queue_;
  std::atomic<std::uint64_t> failed_after_{none_failed};
  buffers_in_flight<capacity> in_flight_;  // of checked builds
  std::uint64_t abandoned_ = 0;
  bool unreported_ = false;
  where abandoned_at_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
