// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The communications that a rank starts on a device. The rank's control world runs each in its turn, on its
// communication thread: there the rank meets its peers, and queues what is to be done on a stream of the device. Each
// ends at a place of that stream. Nobody but that thread waits for peers, until something is to come after the
// communication.
// IWYU pragma: private, include "belay/backend/cuda/group.hpp"
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/cuda/captured_fork.hpp"
#include "belay/backend/cuda/device.hpp"
#include "belay/backend/cuda/device_calls.hpp"
#include "belay/backend/cuda/graph.hpp"
#include "belay/backend/cuda/memory.hpp"
#include "belay/backend/cuda/stream.hpp"
#include "belay/backend/cuda/stream_state.hpp"
#include "belay/backend/cuda/timed_spans.hpp"
#include "belay/comm/buffers_in_flight.hpp"
#include "belay/comm/call_guard.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/operation_spans.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/span_log.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/device/stream_watch.hpp"

namespace belay::inline BELAY_ABI::cuda {

template <device_api Api>
class communication_order final : public completion_source,
                                  public device_places<Api>,
                                  public captured_branch<Api>,
                                  public std::enable_shared_from_this<communication_order<Api>> {
 public:
  /// Of one of `ranks`. What a rank that is alone starts while a stream is captured is in the graph.
  communication_order(const device<Api>& on, int ranks, const std::shared_ptr<const stream_watch>& watch, where at)
      : device_(&on),
        called_(on, watch, at),
        fetched_(on, room, at),
        started_(on, stream_kind::communication, watch, at),
        fork_(started_.state()),
        captured_(started_.state(), lost_) {
    if (ranks == 1) on.add_branch(*this);
  }
  ~communication_order() { device_->remove_branch(*this); }

  /// Throws usage_error, with `what` in its text, while a graph is being captured: a call that returns when the device
  /// has done its work does it at once, and in no launch of that graph.
  void expect_no_capture(const char* what, where at) const { called_.expect_no_capture(what, at); }
  /// For what the rank's own thread calls.
  [[nodiscard]] device_calls<Api>& of_calls() noexcept { return called_; }

  /// For what is started, while it runs on the communication thread. `fetch` copies to the host in the order of the
  /// stream, and waits for that. `place` queues a copy to the device, and keeps what it copies from.
  void fetch(void* to, const void* from, std::size_t bytes, where at) {
    expect_no_capture("what the host reads, such as counts of experts on several ranks,", at);
    for (std::size_t first = 0; first < bytes; first += room) {
      const std::size_t part = lesser_of(room, bytes - first);
      started_.copy(fetched_.data(), static_cast<const std::byte*>(from) + first, part, at);
      finish_started(at);
      std::memcpy(static_cast<std::byte*>(to) + first, fetched_.data(), part);
    }
  }
  void place(void* to, const void* from, std::size_t bytes, where at) {
    called_.placed().place(started_, to, from, bytes, at, [&] { started_.synchronize(at); });
  }

  /// Queues `work(stream, calls)`, small and trivially copyable: `calls` has the blocking operations of `control`, the
  /// group of the same ranks in the control world. `state` lives until it is over.
  template <class Control, class Work>
  [[nodiscard]] pending start(operation what, const Control& control, std::shared_ptr<const void> state,
                              const Work& work, const buffer_use& buffers, const start_order& how,
                              const operation_spans& traced = {}) {
    if (fork_.under_way()) return capture(what, how, [&] { work(started_, control); });
    return start_as(what, std::move(state), buffers, how, traced, [&](std::uint64_t number, const start_order& order) {
      const auto run = [self = this, number, work, at = how.at](const auto& calls) {
        self->queue(
            number, [&](stream<Api>& in) { work(in, calls); }, at);
      };
      return control.start_composite(what, run, order);
    });
  }
  /// Queues `work(stream)` of this rank alone, in its turn.
  template <class Control, class Work>
  [[nodiscard]] pending start_local(operation what, const Control& control, const Work& work, const start_order& how) {
    if (fork_.under_way()) return capture(what, how, [&] { work(started_); });
    return start_as(what, {}, {}, how, {}, [&](std::uint64_t number, const start_order& order) {
      const auto run = [self = this, number, work, at = how.at] { self->queue(number, work, at); };
      return control.start_local(what, run, order);
    });
  }

  /// Operations that are started from now on are spans of `log`, as the device runs them; null: of none. Waits for all
  /// that is queued, and earlier spans get their times. By the rank's own thread, between steps. Throws backend_error.
  void trace_into(span_log* log, where at) requires timing_api<Api> {
    wait_until_queued(at);
    if (std::exchange(spans_, nullptr) != nullptr) timed_->resolve(at);
    if (log == nullptr) return;
    if (timed_ == nullptr) timed_ = std::make_unique<timed_spans<Api>>(*device_, started_.handle(), at);
    timed_->anchor(at);
    spans_ = log;
  }
  [[nodiscard]] span_log* spans() const noexcept { return spans_; }

  /// Returns when all that was started is queued or has failed.
  void wait_until_queued(where at) const {
    if (last_ > 0)
      static_cast<void>(
          queued_in_.source()->wait_until(command(last_), largest_value<std::chrono::steady_clock::time_point>, at));
  }
  /// Checked builds: a call must not touch what a started operation has in flight.
  void expect_free(operation by, const buffer_use& buffers, const where& at) const {
    in_flight_.expect_free(buffers, by, at);
  }
  void report_abandoned(const where& at) { lost_.tell(at); }
  /// Started communications whose handle was lost.
  [[nodiscard]] std::uint64_t abandoned() const noexcept { return lost_.count(); }

  // As a branch of captures, of a rank that is alone: its thread queues itself what is captured.
  void prepare(where at) override {
    wait_until_queued(at);
    started_.synchronize(at);
  }
  void fork(stream_state<Api>& on, where at) override {
    kept_.clear();
    in_graph_ = 0;
    fork_.fork(on, at);
  }
  [[nodiscard]] std::shared_ptr<captured_member<Api>> join(stream_state<Api>& on, where at) override {
    const captured_places places = fork_.join(on, at);
    if (in_graph_ == 0) return nullptr;
    return std::make_shared<graph_member>(this->shared_from_this(), places, std::exchange(kept_, {}));
  }
  void end_capture(const std::shared_ptr<captured_work>& made) noexcept override { fork_.end_capture(made); }

  // As a source of events. One that has failed is over, and has never been queued.
  [[nodiscard]] bool over(std::uint64_t number) const noexcept override {
    if (!is_queued(number)) {
      if (!queued_in_.source()->over(command(number))) return false;
      if (!is_queued(number)) return true;
    }
    return started_.state()->over(place_of(number));
  }
  [[nodiscard]] bool wait_until(std::uint64_t number, std::chrono::steady_clock::time_point deadline,
                                where at) const override {
    if (!is_queued(number) && !queued_in_.source()->wait_until(command(number), deadline, at)) return false;
    return !is_queued(number) || started_.state()->wait_until(place_of(number), deadline, at);
  }
  void expect_done(std::uint64_t number, where at) const override {
    if (is_queued(number)) return started_.state()->expect_done(place_of(number), at);
    queued_in_.source()->expect_done(command(number), at);
  }
  /// Returns when the wait is queued: when peers have started the communication too. Throws the first cause.
  void let_wait(const stream_state<Api>& other, std::uint64_t number, where at) const override {
    if (!is_queued(number)) {
      static_cast<void>(
          queued_in_.source()->wait_until(command(number), largest_value<std::chrono::steady_clock::time_point>, at));
      if (!is_queued(number)) queued_in_.source()->expect_done(command(number), at);
    }
    started_.state()->let_wait(other, place_of(number), at);
  }

  void wait(std::uint64_t number, operation what, where at) override {
    const span_timer traced(spans_ == nullptr ? nullptr : add_wait_for(*spans_, what, at));
    static_cast<void>(wait_until(number, largest_value<std::chrono::steady_clock::time_point>, at));
    hand_to_stream(number, what, at);
    expect_done(number, at);
  }
  void hand_to_stream(std::uint64_t number, operation, where) override { in_flight_.remove(number); }
  void abandon(std::uint64_t number, where started_at) noexcept override {
    in_flight_.remove(number);
    lost_.note(started_at);
  }

 private:
  // More than the control world has in flight: a slot is free when its number comes again.
  static constexpr std::size_t capacity = 256;
  static constexpr std::size_t room = std::size_t{1} << 16;  // bytes that are copied from the host and to it at a time
  struct queued_operation {
    stream_event after;
    std::shared_ptr<const void> kept, state;
    operation_spans traced;
  };

  // A launch comes after what the communication thread still queues.
  class graph_member final : public captured_member<Api> {
   public:
    graph_member(std::shared_ptr<communication_order> of, captured_places places,
                 std::vector<std::shared_ptr<const void>> kept)
        : of_(std::move(of)), in_graph_(of_->started_.state(), places, std::move(kept)) {}
    void before_launch(const std::shared_ptr<stream_state<Api>>& on, where at) override {
      of_->wait_until_queued(at);
      in_graph_.before_launch(on, at);
    }
    void after_launch(const std::shared_ptr<stream_state<Api>>& on, where at) override {
      in_graph_.after_launch(on, at);
    }

   private:
    std::shared_ptr<communication_order> of_;
    forked_member<Api> in_graph_;
  };

  template <class Queue>
  [[nodiscard]] pending capture(operation what, const start_order& how, const Queue& queue) {
    report_abandoned(how.at);
    clock_.join(how.event.clock());
    if (how.event.source() != nullptr) started_.wait(how.event, how.at);
    queue();
    ++in_graph_;
    if (how.kept != nullptr) kept_.push_back(how.kept);
    const std::uint64_t end = started_.state()->record(how.at);
    std::shared_ptr<completion_source> ends(this->shared_from_this(), &captured_);
    return pending(std::move(ends), end, what, how.at, clock_.mark(stream_kind::communication));
  }

  [[nodiscard]] bool is_queued(std::uint64_t number) const noexcept {
    return queued_.load(std::memory_order_acquire) >= number;
  }
  // Where one that is queued ends in the stream, or a later one.
  [[nodiscard]] std::uint64_t place_of(std::uint64_t number) const noexcept {
    return ends_[number % capacity].load(std::memory_order_relaxed);
  }
  // What was placed is in place then.
  void finish_started(where at) {
    started_.synchronize(at);
    called_.placed().note_finished();
  }
  // Its number in the control world.
  [[nodiscard]] std::uint64_t command(std::uint64_t number) const noexcept {
    return commands_[number % capacity].load(std::memory_order_acquire);
  }

  // `start_command(number, order)` starts it in the control world.
  template <class StartCommand>
  [[nodiscard]] pending start_as(operation what, std::shared_ptr<const void> state, const buffer_use& buffers,
                                 const start_order& how, const operation_spans& traced,
                                 const StartCommand& start_command) {
    report_abandoned(how.at);
    const std::uint64_t number = last_ + 1;
    ring_[number % capacity] = {how.event, how.kept, std::move(state), traced};
    clock_.join(how.event.clock());
    const start_order order = start_order(how.at).keeping(this->shared_from_this());
    pending queued = start_command(number, spans_ == nullptr ? order : order.traced_elsewhere());
    last_ = number;
    if (queued_in_.source() == nullptr) queued_in_ = queued.event();
    commands_[number % capacity].store(queued.event().place(), std::memory_order_release);
    std::move(queued).in_start_order(how.at);
    in_flight_.add(number, buffers, what, how.at);
    return pending(this->shared_from_this(), number, what, how.at, clock_.mark(stream_kind::communication));
  }

  // On the communication thread.
  template <class Work>
  void queue(std::uint64_t number, const Work& work, const where& at) {
    if (!std::exchange(opened_, true)) device_->open(at);
    queued_operation& mine = ring_[number % capacity];
    begin(mine.traced.waits, at);
    if (mine.after.source() != nullptr) started_.wait(mine.after, at);
    end(mine.traced.waits, at);
    begin(mine.traced.runs, at);
    work(started_);
    end(mine.traced.runs, at);
    ends_[number % capacity].store(started_.state()->record(at), std::memory_order_relaxed);
    mine = {};
    queued_.store(number, std::memory_order_release);
  }

  void begin([[maybe_unused]] traced_span* of, [[maybe_unused]] const where& at) {
    if constexpr (timing_api<Api>)
      if (of != nullptr) timed_->begin(of, at);
  }
  void end([[maybe_unused]] const traced_span* of, [[maybe_unused]] const where& at) {
    if constexpr (timing_api<Api>)
      if (of != nullptr) timed_->end(of, at);
  }

  const device<Api>* device_;
  device_calls<Api> called_;
  pinned_memory<Api> fetched_;
  stream<Api> started_;
  stream_clock clock_{stream_kind::communication, 1};
  std::array<queued_operation, capacity> ring_{};
  std::array<std::atomic<std::uint64_t>, capacity> commands_{}, ends_{};
  stream_event queued_in_;  // of the control world
  std::uint64_t last_ = 0;
  std::atomic<std::uint64_t> queued_{0};
  bool opened_ = false;                      // by the communication thread
  std::unique_ptr<timed_spans<Api>> timed_;  // where it was traced; of that thread, and of none between steps
  span_log* spans_ = nullptr;
  buffers_in_flight<capacity> in_flight_;  // of checked builds
  lost_handles lost_;
  captured_fork<Api> fork_;
  captured_ends<Api> captured_;
  std::size_t in_graph_ = 0;                       // what was started in the capture
  std::vector<std::shared_ptr<const void>> kept_;  // for as long as its graph
};

}  // namespace belay::inline BELAY_ABI::cuda
