// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The communication stream of a rank over NCCL: a stream of its device, into which the rank's host thread queues what
// it starts, in the order of the program. Other streams of the device wait for its operations on the device. Starting
// allocates nothing.
// IWYU pragma: private, include "belay/backend/nccl.hpp"
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "belay/backend/cuda/device_calls.hpp"
#include "belay/backend/cuda/graph.hpp"
#include "belay/backend/cuda/memory.hpp"
#include "belay/backend/cuda/stream.hpp"
#include "belay/backend/nccl/captured_operations.hpp"
#include "belay/backend/nccl/communication_memory.hpp"
#include "belay/backend/nccl/communicators.hpp"
#include "belay/backend/nccl/nccl_api.hpp"
#include "belay/comm/abort_cause.hpp"
#include "belay/comm/buffers_in_flight.hpp"
#include "belay/comm/call_guard.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/operation_spans.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/process.hpp"
#include "belay/core/span_log.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/device/stream_watch.hpp"

namespace belay::inline BELAY_ABI::nccl {

/// Shared by the rank, its groups and its handles. The device and the library outlive it. What is started while a
/// stream of the device is captured is in the graph.
template <cuda::device_api Api, nccl_api N>
requires std::same_as<typename Api::stream_type, typename N::stream_type>
class channel final : public completion_source,
                      public cuda::device_places<Api>,
                      public cuda::captured_branch<Api>,
                      public std::enable_shared_from_this<channel<Api, N>> {
 public:
  /// So many operations may be in flight; one more waits for the oldest.
  static constexpr std::size_t capacity = cuda::stream_state<Api>::events;
  /// Of the device, beside the workspace: a barrier's.
  static constexpr std::size_t word_bytes = bytes_of_barrier;
  using duration = std::chrono::steady_clock::duration;

  channel(const cuda::device<Api>& on, const library<N>& lib, std::shared_ptr<const stream_watch> watch,
          std::size_t workspace_bytes, where at)
      : device_(&on),
        lib_(&lib),
        number_(on.rank()),
        failure_(std::move(watch)),
        communicators_(lib, failure_),
        guard_(std::make_shared<own_process>(), on.rank()),
        workspace_(on, workspace_bytes, at),
        word_(on, word_bytes, at),
        calls_(on, failure_.shared_watch(), at),
        stream_(on, stream_kind::communication, failure_.shared_watch(), at),
        captured_(stream_, lost_) {
    on.add_branch(*this);
  }
  channel(const channel&) = delete;
  channel& operator=(const channel&) = delete;
  ~channel() {
    cut();
    device_->remove_branch(*this);
  }

  [[nodiscard]] const cuda::device<Api>& device() const noexcept { return *device_; }
  [[nodiscard]] const library<N>& lib() const noexcept { return *lib_; }
  [[nodiscard]] communicators<N>& made() noexcept { return communicators_; }
  [[nodiscard]] cuda::stream<Api>& stream() noexcept { return stream_; }
  /// For what the rank does between operations.
  [[nodiscard]] cuda::device_calls<Api>& calls() noexcept { return calls_; }
  [[nodiscard]] const cuda::device_memory<Api>& workspace() const noexcept { return workspace_; }
  /// The word that a barrier adds; nobody needs its value. A workspace may have no byte.
  [[nodiscard]] std::byte* barrier_word() const noexcept { return word_.data(); }
  [[nodiscard]] call_guard& guard() noexcept { return guard_; }
  [[nodiscard]] rank_failure& failure() noexcept { return failure_; }
  /// The rank's number in the world.
  [[nodiscard]] const int& number() const noexcept { return number_; }
  /// Windows that are registered: they end before their communicators.
  void count_window(int more) noexcept { windows_ += more; }
  [[nodiscard]] int windows() const noexcept { return windows_; }
  /// Counts the operations of the group of this rank alone.
  [[nodiscard]] std::uint64_t next_alone() noexcept { return alone_++; }

  /// Queues what `queue(site)` calls of NCCL and of the device, behind what `how` says; it may tell the site of more
  /// bytes. Throws the first cause of the rank, and backend_error where a call fails.
  template <class Queue>
  [[nodiscard]] pending launch(call_site site, const buffer_use& buffers, const start_order& how, duration limit,
                               const Queue& queue) {
    guard_.expect_usable(name(site.what), site.at);
    const call_guard::scoped_entry mine(guard_, name(site.what), site.at);
    lost_.tell(site.at);
    if (captured_.under_way()) return capture(site, how, limit, queue);
    const std::uint64_t number = launched_.load(std::memory_order_relaxed) + 1;
    expect_alive(site);
    if (number > capacity) await(number - capacity, site);
    operation_slot& slot = slots_[number % capacity];
    const stream_event end = queue_behind(how.event, site, queue);
    const stream_event begin = how.event.source() == this ? end_of(how.event.place()) : how.event;  // no cycle
    {
      const std::lock_guard lock(slots_lock_);
      slot = {{site, limit}, begin, end, how.kept};
      launched_.store(number, std::memory_order_release);
    }
    in_flight_.add(number, buffers, site.what, site.at);
    return pending(this->shared_from_this(), number, site.what, site.at, end.clock());
  }
  /// Checked builds: a blocking call must not touch what a started operation has in flight.
  void expect_free(operation by, const buffer_use& buffers, const where& at) const {
    in_flight_.expect_free(buffers, by, at);
  }

  // As a source of events.
  [[nodiscard]] bool over(std::uint64_t number) const noexcept override { return end_of(number).ready(); }
  [[nodiscard]] bool wait_until(std::uint64_t number, std::chrono::steady_clock::time_point deadline,
                                where at) const override {
    while (std::chrono::steady_clock::now() < deadline)
      if (reached_within_slice(number, deadline, at)) return true;
    return over(number);
  }
  void expect_done(std::uint64_t number, where at) const override {
    if (failure_.failed() && number > good_.load(std::memory_order_acquire)) failure_.raise(site_of(number, at));
  }
  void let_wait(const cuda::stream_state<Api>& other, std::uint64_t number, where at) const override {
    const stream_event end = end_of(number);
    if (const auto* places = dynamic_cast<const cuda::device_places<Api>*>(end.source()))
      places->let_wait(other, end.place(), at);
  }
  void wait(std::uint64_t number, operation what, where at) override {
    guard_.expect_usable(name(what), at);
    const call_guard::scoped_entry mine(guard_, name(what), at);
    const span_timer traced(stream_.spans() == nullptr ? nullptr : add_wait_for(*stream_.spans(), what, at));
    await(number, site_of(number, at));
    in_flight_.remove(number);
    expect_done(number, at);
  }
  void hand_to_stream(std::uint64_t number, operation what, where at) override {
    guard_.expect_usable(name(what), at);
    in_flight_.remove(number);
  }
  void abandon(std::uint64_t number, where started_at) noexcept override {
    in_flight_.remove(number);
    lost_.note(started_at);
  }
  [[nodiscard]] std::uint64_t abandoned() const noexcept { return lost_.count(); }

  // As a branch of captures.
  void prepare(where at) override {
    drain(at);
    for (std::uint64_t last = launched_.load(std::memory_order_relaxed), n = first_in_ring(last); n <= last; ++n)
      await(n, {operation::none, 0, n, 0, at});
    mark_good();
    communicators_.hold_aborts();
    const std::lock_guard nobody_looks(looking_);  // at events from before: they are recorded again
  }
  void fork(cuda::stream_state<Api>& on, where at) override { captured_.fork(on, at); }
  [[nodiscard]] std::shared_ptr<cuda::captured_member<Api>> join(cuda::stream_state<Api>& on, where at) override {
    captured_calls calls = captured_.join(on, at);
    if (calls.all.in_graph == 0) return nullptr;
    return std::make_shared<graph_member<Api, channel>>(this->shared_from_this(), std::move(calls));
  }
  void end_capture(const std::shared_ptr<cuda::captured_work>& made) noexcept override {
    captured_.end_capture(made);
    if (communicators_.let_aborts()) abort_all();
  }
  /// Graphs that have operations of the rank: they end before its communicators.
  [[nodiscard]] std::size_t graphs() const { return captured_.graphs(); }

  /// A launch is an operation of its own: behind what was started before, and what is started later is behind it.
  [[nodiscard]] stream_event before_launch(const captured_calls& calls,
                                           const std::shared_ptr<cuda::stream_state<Api>>& on, where at) {
    call_site site = calls.all.site;
    site.at = at;
    expect_alive(site);
    const std::uint64_t number = launched_.load(std::memory_order_relaxed) + 1;
    if (number > capacity) await(number - capacity, site);
    const stream_event end = stream_.record(at);
    stream_.state()->let_wait(*on, end.place(), at);
    return stream_event(on, on->record(at));
  }
  void after_launch(const captured_calls& calls, const stream_event& after,
                    const std::shared_ptr<cuda::stream_state<Api>>& on, where at) {
    const stream_event end(on, on->record(at));
    on->let_wait(*stream_.state(), end.place(), at);
    const std::uint64_t number = launched_.load(std::memory_order_relaxed) + 1;
    const std::lock_guard lock(slots_lock_);
    slots_[number % capacity] = {calls.all, after, end, {}};
    launched_.store(number, std::memory_order_release);
  }

  /// One look of the watchdog: all communicators are aborted where one of them has met an error, the control world has
  /// failed, or the oldest operation that has begun takes longer than its limit. From any thread.
  void look() noexcept {
    const std::unique_lock lock(looking_, std::try_to_lock);  // who does now may abort, and wait for this thread
    if (lock.owns_lock()) look_alone();
  }
  void look_alone() noexcept {
    if (failure_.failed()) return;
    try {
      if (const auto problem = communicators_.met()) return fail(named(*problem));
      if (failure_.watch().failed()) {
        failure_.note_world();
        return abort_all();
      }
      look_at_oldest();
    } catch (const backend_error& problem) {
      fail(problem);
    }
  }
  /// Throws the first cause, once something of the rank has failed.
  void expect_alive(const call_site& site) const {
    if (failure_.failed()) [[unlikely]]
      failure_.raise(site);
  }
  /// `problem` is the first cause unless there is one: communicators are aborted, and so what is queued ends.
  void fail(const backend_error& problem) noexcept {
    mark_good();
    failure_.note(problem);
    abort_all();
  }
  /// Waits for all that is queued. Throws as a wait does.
  void drain(where at) {
    const std::uint64_t last = launched_.load(std::memory_order_relaxed);
    const call_site site{operation::none, 0, last, 0, at};
    if (last > 0) await(last, site);
    {
      const std::lock_guard lock(looking_);
      look_alone();
    }
    expect_alive(site);
  }
  /// Ends what is queued, by aborting, if there is any communicator left.
  void cut() noexcept {
    guard_.end();
    abort_all();
  }

 private:
  struct operation_slot {
    started_call call;
    stream_event after;
    stream_event end;
    std::shared_ptr<const void> kept;
  };

  // Queues behind `event`; returns the end.
  template <class Queue>
  [[nodiscard]] stream_event queue_behind(const stream_event& event, call_site& site, const Queue& queue) {
    try {
      if (event.source() != nullptr) stream_.wait(event, site.at);
      const auto turn = communicators_.enter();
      expect_alive(site);
      queue(site);
      return stream_.record(site.at);
    } catch (const backend_error& problem) {
      fail(problem);
      throw;
    }
  }
  template <class Queue>
  [[nodiscard]] pending capture(call_site site, const start_order& how, duration limit, const Queue& queue) {
    expect_alive(site);
    const stream_event end = queue_behind(how.event, site, queue);
    return captured_.add(this->shared_from_this(), site, limit, end, how.kept);
  }
  [[nodiscard]] static std::uint64_t first_in_ring(std::uint64_t last) noexcept {
    return last > capacity ? last - capacity + 1 : 1;
  }

  [[nodiscard]] operation_slot slot_of(std::uint64_t number) const {
    const std::lock_guard lock(slots_lock_);
    return slots_[number % capacity];
  }
  [[nodiscard]] stream_event end_of(std::uint64_t number) const noexcept { return slot_of(number).end; }
  [[nodiscard]] call_site site_of(std::uint64_t number, const where& at) const {
    call_site site = slot_of(number).call.site;
    site.at = at;
    return site;
  }

  [[nodiscard]] bool reached_within_slice(std::uint64_t number, std::chrono::steady_clock::time_point deadline,
                                          where at) const {
    const auto slice_end = std::chrono::steady_clock::now() + stream_patience::slice;
    return end_of(number).synchronize_until(lesser_of(deadline, slice_end), at);
  }
  // Every operation ends: by itself, or because it is aborted.
  void await(std::uint64_t number, const call_site& site) {
    try {
      while (!reached_within_slice(number, largest_value<std::chrono::steady_clock::time_point>, site.at)) look();
    } catch (const backend_error& problem) {
      fail(problem);
      expect_alive(site);
    }
  }
  // What an asynchronous error is about: the oldest operation that is not over.
  [[nodiscard]] backend_error named(const backend_error& problem) const {
    backend_error::details about = problem.about();
    if (const std::uint64_t oldest = oldest_waiting(); oldest != 0) {
      const started_call call = slot_of(oldest).call;
      about.call = call.text() + ": " + about.call;
      about.bytes = call.site.bytes;
      about.here = call.site.at;
    }
    return backend_error(std::move(about));
  }
  [[nodiscard]] std::uint64_t oldest_waiting() const {
    const std::uint64_t last = launched_.load(std::memory_order_acquire);
    for (std::uint64_t number = greater_of(first_in_ring(last), good_.load(std::memory_order_relaxed) + 1);
         number <= last; ++number)
      if (!over(number)) return number;
    return 0;
  }
  // Not counted is the time in which it waits for what it comes after, which has a limit of its own.
  void look_at_oldest() {
    const std::uint64_t oldest = oldest_waiting();
    const auto now = failure_.watch().now();
    const operation_slot slot = slot_of(oldest);
    if (oldest == 0 || oldest != watched_ || !slot.after.ready()) since_ = now;
    watched_ = oldest;
    if (oldest == 0) return;
    const started_call& call = slot.call;
    if (now - since_ < call.limit) return;
    mark_good();
    failure_.note_timeout("rank " + std::to_string(lib_->rank()) + " waits in " + call.text() + " of " +
                              std::to_string(call.site.bytes) + " bytes for " +
                              std::to_string(std::chrono::duration<double>(call.limit).count()) +
                              " s: not all ranks of its group have come to it, or one that has is stuck",
                          call.site.at);
    abort_all();
  }
  void mark_good() noexcept {
    if (failure_.failed()) return;
    const std::uint64_t last = launched_.load(std::memory_order_acquire);
    std::uint64_t good = good_.load(std::memory_order_relaxed);
    while (good < last && (last - good > capacity || over(good + 1))) ++good;
    good_.store(good, std::memory_order_release);
  }
  void abort_all() noexcept {
    captured_.end_graphs();
    communicators_.abort();
  }

  const cuda::device<Api>* device_;
  const library<N>* lib_;
  int number_;
  std::uint64_t alone_ = 0;
  int windows_ = 0;
  mutable rank_failure failure_;
  communicators<N> communicators_;
  call_guard guard_;
  cuda::device_memory<Api> workspace_, word_;
  cuda::device_calls<Api> calls_;
  cuda::stream<Api> stream_;
  mutable std::mutex slots_lock_;  // the host thread writes a slot, any thread reads it
  std::array<operation_slot, capacity> slots_{};
  std::atomic<std::uint64_t> launched_{0};
  std::atomic<std::uint64_t> good_{0};  // operations up to it were over before the failure
  std::mutex looking_;
  std::uint64_t watched_ = 0;
  std::chrono::steady_clock::time_point since_ = failure_.watch().now();
  buffers_in_flight<capacity> in_flight_;  // of checked builds
  lost_handles lost_;
  captured_operations<Api> captured_;
};

}  // namespace belay::inline BELAY_ABI::nccl
