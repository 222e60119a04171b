// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The communication stream of a rank: one thread that runs started operations in launch order, while the rank
// computes. The thread exists from the first start on. Commands have a fixed size and live in a fixed ring, so that a
// start allocates nothing.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

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

#include "belay/comm/abort_cause.hpp"
#include "belay/comm/buffers_in_flight.hpp"
#include "belay/comm/call_guard.hpp"
#include "belay/comm/lane.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/submission_queue.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// What a stream asks of a backend's world.
template <class W>
concept world_state = requires(W& world, const W& seen, const call_site& call, const abort_cause& why) {
  { seen.aborted() } -> std::same_as<bool>;
  seen.raise(call);  // throws the first cause
  world.abort(why);
  { seen.before_sleep(lane::stream) } -> std::same_as<spin_policy>;
  { seen.home() } -> std::convertible_to<std::shared_ptr<const own_process>>;
};

/// Used by the rank's own thread. Its groups and handles share it.
template <world_state World>
class async_stream final : public completion_source, public std::enable_shared_from_this<async_stream<World>> {
 public:
  /// So many operations may be in flight; one more waits for the oldest.
  static constexpr std::size_t capacity = 128;
  /// Bytes of a command's arguments.
  static constexpr std::size_t command_room = 152;

  async_stream(std::shared_ptr<World> world, int rank) noexcept
      : world_(std::move(world)), rank_(rank), guard_(world_->home(), rank) {}
  async_stream(const async_stream&) = delete;
  async_stream& operator=(const async_stream&) = delete;
  ~async_stream() { finish(); }

  /// Queues `work(State&)`, small and trivially copyable; keeps the state until it has run. Throws like a call on the
  /// group.
  template <class State, class Work>
  requires(sizeof(Work) <= command_room && std::is_trivially_copyable_v<Work>) pending
      launch(operation what, const std::shared_ptr<State>& state, Work work, const buffer_use& buffers, where at) {
    guard_.expect_usable(name(what), at);
    const call_guard::entry mine(guard_, name(what), at);
    command& slot = next_slot(what, at);
    slot.state = state;
    ::new (static_cast<void*>(slot.storage)) Work(work);
    slot.run = [](command& self) {
      (*std::launder(reinterpret_cast<Work*>(self.storage)))(*static_cast<State*>(self.state.get()));
    };
    return submit(what, buffers, at);
  }

  [[nodiscard]] bool ready(std::uint64_t number) const noexcept override { return queue_.completed(number); }

  void wait(std::uint64_t number, operation what, where at) override {
    guard_.expect_usable(name(what), at);
    const call_guard::entry mine(guard_, name(what), at);
    await(number);
    if constexpr (checked(check_level::local)) {
      const std::lock_guard lock(notes_);
      in_flight_.remove(number);
    }
    if (number > failed_after_.load(std::memory_order_acquire)) world_->raise({what, 0, number - 1, 0, at});
  }

  /// From any thread: a handle may be lost where it was refused.
  void abandon(std::uint64_t number, where started_at) noexcept override {
    const std::lock_guard lock(notes_);
    if constexpr (checked(check_level::local)) in_flight_.remove(number);
    ++abandoned_;
    unreported_ = true;
    abandoned_at_ = started_at;
  }

  /// Started communications of this rank whose handle was lost.
  [[nodiscard]] std::uint64_t abandoned() const noexcept {
    const std::lock_guard lock(notes_);
    return abandoned_;
  }

  /// Checked builds: the first call after a handle was lost says so.
  void report_abandoned([[maybe_unused]] const where& at) {
    if constexpr (checked(check_level::local)) {
      const std::lock_guard lock(notes_);
      if (!std::exchange(unreported_, false)) return;
      throw usage_error("the communication started at " + abandoned_at_.text() +
                            " was never waited for; its buffers may still be in use",
                        at);
    }
  }

  /// Checked builds: a call must not touch what a started operation has in flight. (Another started one may: it runs
  /// after that.)
  void expect_free([[maybe_unused]] operation by, [[maybe_unused]] const buffer_use& buffers,
                   [[maybe_unused]] const where& at) const {
    if constexpr (checked(check_level::local)) {
      const std::lock_guard lock(notes_);
      in_flight_.expect_free(buffers, by, at);
    }
  }

  [[nodiscard]] const std::shared_ptr<World>& world() const noexcept { return world_; }
  /// Its rank's number in the world.
  [[nodiscard]] const int& number() const noexcept { return rank_; }

  /// One call of the rank at a time.
  [[nodiscard]] call_guard& guard() noexcept { return guard_; }

  /// Runs what is queued and ends the thread, which a forked child does not have.
  void finish() noexcept {
    if (!thread_.joinable()) return;
    if (!guard_.in_own_process()) return thread_.detach();
    queue_.end();
    thread_.join();
  }
  /// The same, for good: groups and handles that are left cannot call any more.
  void end() noexcept {
    finish();
    guard_.end();
  }

 private:
  struct command {
    void (*run)(command&) = nullptr;
    std::shared_ptr<void> state;
    alignas(16) std::byte storage[command_room];
  };

  // The slot of the next operation, which is this thread's until it is submitted.
  [[nodiscard]] command& next_slot(operation what, const where& at) {
    report_abandoned(at);
    const std::uint64_t number = queue_.next();
    if (world_->aborted()) world_->raise({what, 0, number - 1, 0, at});
    if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
    if (number > capacity) await(number - capacity);
    return ring_[number % capacity];
  }
  [[nodiscard]] pending submit(operation what, [[maybe_unused]] const buffer_use& buffers, const where& at) {
    const std::uint64_t number = queue_.next();
    if constexpr (checked(check_level::local)) {
      const std::lock_guard lock(notes_);
      in_flight_.add(number, buffers, what, at);
    }
    queue_.launch(number);
    return pending(this->shared_from_this(), number, what, at);
  }

  // Every launched operation completes: one that fails lets all later ones fail, in the first cause.
  void await(std::uint64_t number) noexcept { queue_.wait(number, world_->before_sleep(lane::caller)); }

  void serve() noexcept {
    while (const std::uint64_t number = queue_.await(world_->before_sleep(lane::stream))) {
      command& now = ring_[number % capacity];
      if (failed_after_.load(std::memory_order_relaxed) == none_failed) run(now, number);
      now.state.reset();
      queue_.complete(number);
    }
  }

  void run(command& now, std::uint64_t number) noexcept {
    try {
      now.run(now);
      return;
    } catch (const comm_error&) {
      // The world keeps the cause.
    } catch (const std::exception& problem) {
      abort(message_of(problem));
    } catch (...) {
      abort("an exception that is no std::exception");
    }
    failed_after_.store(number - 1, std::memory_order_release);
  }

  void abort(const char* problem) {
    const std::string text = "rank " + std::to_string(rank_) + " started an operation that throws: " + problem;
    world_->abort({comm_fault::peer_failed, {rank_}, text, ""});
  }

  static constexpr std::uint64_t none_failed = ~std::uint64_t{0};

  std::shared_ptr<World> world_;
  int rank_;
  mutable std::mutex notes_;  // of what is in flight and of lost handles
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

}  // namespace belay::inline BELAY_ABI
