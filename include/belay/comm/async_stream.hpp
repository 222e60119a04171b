// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The communication stream of a rank: one thread that runs started operations in launch order, while the rank
// computes. The thread exists from the first start on. Commands have a fixed size and live in a fixed ring, so that a
// start allocates nothing. The world that a stream is of also bounds the waits for the rank's other streams.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/comm/abort_cause.hpp"
#include "belay/comm/buffers_in_flight.hpp"
#include "belay/comm/call_guard.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/event_count.hpp"
#include "belay/comm/operation_spans.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/comm/submission_queue.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/span_log.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_arbiter.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/device/stream_watch.hpp"

namespace belay::inline BELAY_ABI {

/// A backend's world as a stream uses it: it says whether it has failed, throws the first cause, can be aborted, and
/// says what time it is and how long waits spin.
template <class W>
concept world_state = requires(W& world, const W& seen, const call_site& call, const abort_cause& why) {
  { seen.aborted() } -> std::same_as<bool>;
  seen.raise(call);  // throws the first cause
  world.abort(why);
  { seen.before_sleep(lane::stream) } -> std::same_as<spin_policy>;
  { seen.now() } -> std::same_as<std::chrono::steady_clock::time_point>;
  { seen.home() } -> std::convertible_to<std::shared_ptr<const own_process>>;
};

/// Whether the world has failed, for a wait in which no operation of the thread looks for what peers say.
template <world_state World>
[[nodiscard]] bool has_failed(World& world) noexcept {
  if constexpr (requires { world.look_for_abort(); }) world.look_for_abort();
  return world.aborted();
}

/// Used by the rank's own thread. Its groups and handles share it.
template <world_state World>
class async_stream final : public completion_source, public std::enable_shared_from_this<async_stream<World>> {
 public:
  /// So many operations may be in flight; one more waits for the oldest.
  static constexpr std::size_t capacity = 128;
  /// Bytes of a command's arguments.
  static constexpr std::size_t command_room = 448;

  async_stream(std::shared_ptr<World> world, int rank) noexcept
      : world_(std::move(world)), rank_(rank), guard_(world_->home(), rank) {}
  async_stream(const async_stream&) = delete;
  async_stream& operator=(const async_stream&) = delete;
  ~async_stream() {
    finish();
    if (turns_ != nullptr) arbiter_->remove(*turns_);
  }

  using duration = std::chrono::steady_clock::duration;

  /// Queues `work(State&)`, small and trivially copyable; keeps the state until it has run. What it comes after is
  /// waited for no longer than `limit`. Throws like a call on the group.
  template <class State, class Work>
  requires(sizeof(Work) <= command_room && std::is_trivially_copyable_v<Work>) pending
      launch(operation what, const std::shared_ptr<State>& state, Work work, const buffer_use& buffers,
             const start_order& how, duration limit, const stream_meeting& meeting = {},
             const operation_spans& traced = {}) {
    guard_.expect_usable(name(what), how.at);
    const call_guard::scoped_entry mine(guard_, name(what), how.at);
    command& slot = next_slot(what, how.at);
    slot.state = state;
    slot.after = how.event;
    clock_.join(how.event.clock());
    slot.kept = how.kept;
    slot.what = what;
    slot.at = how.at;
    slot.limit = limit;
    slot.traced = traced;
    if (arbiter_ != nullptr) slot.meet(meeting);
    ::new (static_cast<void*>(slot.storage)) Work(work);
    slot.run = [](command& self) {
      (*std::launder(reinterpret_cast<Work*>(self.storage)))(*static_cast<State*>(self.state.get()));
    };
    return submit(what, buffers, how.at);
  }

  // As a source of events. An operation ends by its own limit: a wait without one ends too.
  [[nodiscard]] bool over(std::uint64_t number) const noexcept override { return queue_.completed(number); }
  [[nodiscard]] bool wait_until(std::uint64_t number, std::chrono::steady_clock::time_point deadline,
                                where) const override {
    if (deadline != largest_value<std::chrono::steady_clock::time_point> && arbiter_ == nullptr)
      return queue_.wait_until(number, world_->before_sleep(lane::caller), deadline);
    await(number);
    return true;
  }
  void expect_done(std::uint64_t number, where at) const override {
    if (number <= failed_after_.load(std::memory_order_acquire)) return;
    world_->raise({started_[number % capacity].load(std::memory_order_relaxed), 0, number - 1, 0, at});
  }
  void hand_to_stream(std::uint64_t number, operation what, where at) override {
    guard_.expect_usable(name(what), at);
    in_flight_.remove(number);
  }

  /// Operations run from now on when `arbiter` says so. Before the first of them.
  void use(std::shared_ptr<stream_arbiter> arbiter) {
    arbiter_ = std::move(arbiter);
    turns_ = std::make_unique<turns>(*this);
    named_.reserve(64);
    for (command& slot : ring_) slot.ranks.reserve(64), slot.transfers.reserve(64);  // a start allocates nothing
    arbiter_->add(*turns_);
  }
  /// The transfers of an exchange between ranks of the world, of which `members` are the group. Valid until the next
  /// call.
  [[nodiscard]] std::span<const stream_transfer> named_transfers(std::span<const int> members,
                                                                 std::span<const p2p> transfers) {
    named_.clear();
    for (const p2p& one : transfers) {
      const auto peer = static_cast<std::size_t>(one.peer);
      if (peer >= members.size()) continue;  // refused when it runs
      named_.push_back({members[peer], one.kind == p2p::direction::receive ? stream_transfer::direction::receive
                                                                           : stream_transfer::direction::send});
    }
    return named_;
  }
  /// Returns when all that was started is over, done or failed: the stream's lane is the caller's. Throws like a call.
  void wait_until_idle(operation by, const where& at) const {
    if (!queue_.waits()) return;
    guard_.expect_usable(name(by), at);
    await(queue_.next() - 1);
  }
  /// The arbiter that says when operations run; or null.
  [[nodiscard]] stream_arbiter* arbiter() const noexcept { return arbiter_.get(); }

  void wait(std::uint64_t number, operation what, where at) override {
    guard_.expect_usable(name(what), at);
    const call_guard::scoped_entry mine(guard_, name(what), at);
    const span_timer waits(spans_ == nullptr || queue_.completed(number) ? nullptr : add_wait_for(*spans_, what, at));
    await(number);
    in_flight_.remove(number);
    if (number > failed_after_.load(std::memory_order_acquire)) world_->raise({what, 0, number - 1, 0, at});
  }

  /// From any thread: a handle may be lost where it was refused.
  void abandon(std::uint64_t number, where started_at) noexcept override {
    in_flight_.remove(number);
    lost_.note(started_at);
  }

  /// Started communications of this rank whose handle was lost.
  [[nodiscard]] std::uint64_t abandoned() const noexcept { return lost_.count(); }

  /// Checked builds: the first call after a handle was lost says so.
  void report_abandoned(const where& at) { lost_.tell(at); }

  /// Checked builds: a call must not touch what a started operation has in flight. (Another started one may: it runs
  /// after that.)
  void expect_free(operation by, const buffer_use& buffers, const where& at) const {
    in_flight_.expect_free(buffers, by, at);
  }

  [[nodiscard]] const std::shared_ptr<World>& world() const noexcept { return world_; }
  /// Its rank's number in the world.
  [[nodiscard]] const int& number() const noexcept { return rank_; }

  /// Operations and waits of the rank are spans of `log` from now on; null: of none. It outlives them.
  void trace_into(span_log* log) noexcept { spans_ = log; }
  [[nodiscard]] span_log* spans() const noexcept { return spans_; }

  /// One call of the rank at a time.
  [[nodiscard]] call_guard& guard() noexcept { return guard_; }

  /// Runs what is queued and ends the thread, which a forked child does not have.
  void finish() noexcept {
    if (!thread_.joinable()) return;
    if (!guard_.in_own_process()) return thread_.detach();
    if (arbiter_ != nullptr) await(queue_.next() - 1);
    queue_.end();
    thread_.join();
  }
  /// Runs what is queued and ends the thread, which a forked child does not have, for good: groups and handles that are
  /// left cannot call any more.
  void end() noexcept {
    finish();
    guard_.end();
  }

 private:
  struct command {
    void (*run)(command&) = nullptr;
    std::shared_ptr<void> state;
    stream_event after;
    std::shared_ptr<const void> kept;
    operation what = operation::none;
    where at;
    duration limit{};
    operation_spans traced;
    stream_meeting meeting;
    std::vector<int> ranks;  // of the meeting, as its transfers; they grow to what is needed once
    std::vector<stream_transfer> transfers;
    alignas(16) std::byte storage[command_room];

    void meet(const stream_meeting& with) {
      ranks.assign(with.ranks.begin(), with.ranks.end());
      transfers.assign(with.transfers.begin(), with.transfers.end());
      meeting = {with.key, ranks, transfers};
    }
  };

  // How an arbiter sees the stream.
  class turns final : public arbitrated {
   public:
    explicit turns(async_stream& owner) noexcept : arbitrated(owner.rank_, runner::own_thread), owner_(&owner) {}
    [[nodiscard]] bool can_run() const noexcept override { return owner_->queue_.waits() && next().after.ready(); }
    [[nodiscard]] const stream_meeting* meets() const noexcept override {
      return next().meeting.key == 0 ? nullptr : &next().meeting;
    }

   private:
    [[nodiscard]] const command& next() const noexcept {
      return owner_->ring_[(owner_->queue_.last_completed() + 1) % capacity];
    }
    async_stream* owner_;
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
  [[nodiscard]] pending submit(operation what, const buffer_use& buffers, const where& at) {
    const std::uint64_t number = queue_.next();
    started_[number % capacity].store(what, std::memory_order_relaxed);
    in_flight_.add(number, buffers, what, at);
    queue_.launch(number);
    return pending(this->shared_from_this(), number, what, at, clock_.mark(stream_kind::communication));
  }

  // Every launched operation completes: one that fails lets all later ones fail, in the first cause.
  void await(std::uint64_t number) const noexcept {
    if (arbiter_ != nullptr && !queue_.completed(number)) arbiter_->wait([&] { return queue_.completed(number); });
    queue_.wait(number, world_->before_sleep(lane::caller));
  }

  void serve() noexcept {
    while (const std::uint64_t number = queue_.await(world_->before_sleep(lane::stream))) {
      command& now = ring_[number % capacity];
      if (arbiter_ != nullptr) arbiter_->await_turn(*turns_);
      if (failed_after_.load(std::memory_order_relaxed) == none_failed) run(now, number);
      now.state.reset();
      now.after = {};
      now.kept.reset();
      queue_.complete(number);
      if (arbiter_ != nullptr) arbiter_->finished(*turns_);
    }
  }

  void run(command& now, std::uint64_t number) noexcept {
    try {
      if (now.after.source() != nullptr) wait_before(now, number);
      const span_timer timed(now.traced.runs);
      now.run(now);
      return;
    } catch (const comm_error&) {
      // The world keeps the cause.
    } catch (const std::exception& problem) {
      abort(message_of(problem), kind_of(problem));
    } catch (...) {
      abort("an exception that is no std::exception", error_kind::other);
    }
    failed_after_.store(number - 1, std::memory_order_release);
    if (arbiter_ != nullptr) arbiter_->open();
  }

  // Returns when what the operation comes after is done. Peers wait in the operation meanwhile, so it has their limit.
  void wait_before(const command& now, std::uint64_t number) {
    const span_timer timed(now.traced.waits);
    const auto begun = world_->now();
    for (;;) {
      const auto spent = world_->now() - begun;
      if (spent >= now.limit) {
        const std::string text = "rank " + std::to_string(rank_) + " started " + name(now.what) + " at " +
                                 now.at.text() + " after an event that its own stream has not reached in time";
        world_->abort({comm_fault::timeout, {rank_}, text, ""});
      }
      if (has_failed(*world_)) world_->raise({now.what, 0, number - 1, 0, now.at});
      const auto slice = lesser_of<duration>(now.limit - spent, std::chrono::nanoseconds(wait_slice_ns));
      if (now.after.synchronize_until(std::chrono::steady_clock::now() + slice, now.at)) return;
    }
  }

  void abort(const char* problem, error_kind kind) {
    const std::string text = "rank " + std::to_string(rank_) + " started an operation that throws: " + problem;
    abort_cause why{comm_fault::peer_failed, {rank_}, text, ""};
    why.thrown = kind;
    world_->abort(std::move(why));
  }

  static constexpr std::uint64_t none_failed = ~std::uint64_t{0};

  std::shared_ptr<World> world_;
  int rank_;
  span_log* spans_ = nullptr;  // of the step that is traced
  stream_clock clock_{stream_kind::communication, 1};
  call_guard guard_;
  std::thread thread_;
  std::array<command, capacity> ring_{};
  std::array<std::atomic<operation>, capacity> started_{};  // for who waits by an event, on another thread
  mutable submission_queue<> queue_;
  std::shared_ptr<stream_arbiter> arbiter_;
  std::unique_ptr<turns> turns_;
  std::vector<stream_transfer> named_;
  std::atomic<std::uint64_t> failed_after_{none_failed};
  buffers_in_flight<capacity> in_flight_;  // of checked builds
  lost_handles lost_;
};

/// The bounds of the waits for the streams of rank `rank` of `world`: the timeout of the world, and its failure.
template <world_state World>
requires requires(const World& world) {
  { world.timeout() } -> std::convertible_to<std::chrono::steady_clock::duration>;
}
class world_watch final : public stream_watch {
 public:
  world_watch(std::shared_ptr<World> world, int rank) noexcept : world_(std::move(world)), rank_(rank) {}

  [[nodiscard]] std::chrono::steady_clock::duration limit() const noexcept override { return world_->timeout(); }
  [[nodiscard]] std::chrono::steady_clock::time_point now() const noexcept override { return world_->now(); }
  [[nodiscard]] bool failed() const noexcept override { return has_failed(*world_); }
  [[noreturn]] void raise(where at) const override { world_->raise({operation::none, 0, 0, 0, at}); }
  [[noreturn]] void give_up(const std::string& what, where at) const override {
    world_->abort({comm_fault::timeout, {rank_}, what, at.line == 0 ? std::string() : at.text()});
    raise(at);
  }
  void fail(error_kind thrown, const std::string& what, where at) const override {
    const comm_fault fault = thrown == error_kind::communication ? comm_fault::timeout : comm_fault::peer_failed;
    abort_cause why{fault, {rank_}, what, at.line == 0 ? std::string() : at.text()};
    why.thrown = thrown;
    world_->abort(std::move(why));
  }
  [[nodiscard]] int rank() const noexcept override { return rank_; }

 private:
  std::shared_ptr<World> world_;
  int rank_;
};

}  // namespace belay::inline BELAY_ABI
