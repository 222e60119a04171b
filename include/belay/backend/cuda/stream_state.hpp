// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A stream of a device and its events. The events are a ring that is made once: a place whose event has been recorded
// again is taken for reached when the later one is. Nobody waits too little, and nobody for something that was queued
// after the wait.
// IWYU pragma: private, include "belay/backend/cuda/stream.hpp"
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <utility>

#include "belay/backend/cuda/device.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/device/stream_watch.hpp"

namespace belay::inline BELAY_ABI::cuda {

template <device_api Api>
class stream_state;

/// Places that a stream of the device can wait for without the host: those of a stream, and of what speaks for one,
/// such as the communications of a rank that are queued there.
template <device_api Api>
class device_places {
 public:
  /// Later work of `other` begins when `place` is reached.
  virtual void let_wait(const stream_state<Api>& other, std::uint64_t place, where at) const = 0;

 protected:
  ~device_places() = default;
};

/// The state that a stream shares with its events. The rank's host thread queues; any thread waits.
template <device_api Api>
class stream_state final : public event_source, public device_places<Api> {
 public:
  static constexpr std::size_t events = 128;

  stream_state(const device<Api>& on, stream_kind kind, std::shared_ptr<const stream_watch> watch, where at)
      : device_(&on), kind_(kind), watch_(std::move(watch)) {
    on.expect(api().make_stream(stream_, kind), "make_stream", 0, at);
    try {
      for (; made_ < events; ++made_) on.expect(api().make_event(ring_[made_]), "make_event", 0, at);
    } catch (...) {
      destroy();
      throw;
    }
  }
  stream_state(const stream_state&) = delete;
  stream_state& operator=(const stream_state&) = delete;
  ~stream_state() { close(); }

  [[nodiscard]] const device<Api>& on() const noexcept { return *device_; }
  [[nodiscard]] Api& api() const noexcept { return device_->api(); }
  [[nodiscard]] typename Api::stream_type handle() const noexcept { return stream_; }
  [[nodiscard]] const std::shared_ptr<const stream_watch>& watch() const noexcept { return watch_; }

  /// Marks the present end of the queue: the next place.
  [[nodiscard]] std::uint64_t record(where at) {
    const std::uint64_t place = recorded_.load(std::memory_order_relaxed) + 1;
    const bool in_capture = captured_from_.load(std::memory_order_relaxed) != no_place;
    if (in_capture) stand_in(place).store(no_place, std::memory_order_release);
    device_->expect(api().record(event_of(place), stream_), "record", 0, at);
    if (!in_capture) stand_in(place).store(0, std::memory_order_release);
    recorded_.store(place, std::memory_order_release);
    return place;
  }
  /// The last place that was marked.
  [[nodiscard]] std::uint64_t last_place() const noexcept { return recorded_.load(std::memory_order_relaxed); }
  /// Places that were marked in a capture stand for the present end of the queue from here on.
  void renew(std::uint64_t first, std::uint64_t last, where at) {
    if (first > last) return;
    const std::uint64_t end = record(at);
    if (end >= events) first = greater_of(first, end - events + 1);  // the others' events are of later places
    for (; first <= last; ++first) stand_in(first).store(end, std::memory_order_release);
  }
  void let_wait(const stream_state& other, std::uint64_t place, where at) const override {
    if (&other == this || is_before_capture_of(other, place)) return;
    const std::shared_lock lock(open_);
    if (closed_ || known_over(place)) return;
    const std::uint64_t told = told_by(place);
    other.device_->expect(api().wait(other.stream_, event_of(told == no_place ? place : told)), "wait", 0, at);
  }

  /// Places from the next one on are of a capture, or no more. They are reached by no work that is queued, and nobody
  /// may ask for their events, until `renew`.
  void begin_capture() const noexcept { captured_from_.store(last_place() + 1, std::memory_order_release); }
  void end_capture() const noexcept { captured_from_.store(no_place, std::memory_order_release); }

  [[nodiscard]] bool over(std::uint64_t place) const noexcept override {
    if (known_over(place)) return true;
    const std::uint64_t told = told_by(place);
    if (told == no_place || device_->capturing()) return false;  // who captures may not ask
    const std::shared_lock lock(open_);
    if (closed_) return true;
    bool reached = false;
    const auto got = api().query(event_of(told), reached);
    if (!api().succeeded(got)) {
      fail(device_->error_of(got, "query", 0, {}));
      return true;  // nothing more will come
    }
    if (reached) note_over(told);
    return reached;
  }
  [[nodiscard]] bool wait_until(std::uint64_t place, std::chrono::steady_clock::time_point deadline,
                                where at) const override {
    expect_not_captured(place, at);
    std::optional<stream_patience> mine;
    while (!over(place)) {
      const auto now = std::chrono::steady_clock::now();
      if (now >= deadline) return false;
      if (reached_within(place, lesser_of<std::chrono::nanoseconds>(deadline - now, stream_patience::slice), at)) break;
      if (watch_ == nullptr || deadline != largest_value<std::chrono::steady_clock::time_point>) continue;
      if (!mine) mine.emplace(*watch_);
      mine->expect_more([] { return std::string(); }, *this, at);
    }
    return true;
  }
  /// Each event is a piece of work, but for those of what has not been launched.
  [[nodiscard]] stream_pace pace() const noexcept override {
    std::uint64_t done = known_over_.load(std::memory_order_acquire);
    while (done < recorded_.load(std::memory_order_acquire) && (told_by(done + 1) == no_place || over(done + 1)))
      ++done;
    return {stream_pace::activity::works, done};
  }
  [[nodiscard]] stream_kind kind() const noexcept override { return kind_; }
  [[nodiscard]] std::string text() const override { return std::string(name(kind_)) + " stream of the device"; }
  void expect_done(std::uint64_t place, where at) const override {
    expect_not_captured(place, at);
    const std::shared_lock lock(open_);
    {
      const std::lock_guard of_failure(failing_);
      if (failure_) std::rethrow_exception(failure_);
    }
    if (closed_) return;
    const std::uint64_t told = told_by(place);
    if (told == no_place) return;
    bool reached = false;
    device_->expect(api().query(event_of(told), reached), "query", 0, at);
  }
  /// Returns when all that was queued is over; throws what has failed of it.
  void synchronize(where at) {
    const std::uint64_t end = record(at);
    static_cast<void>(wait_until(end, largest_value<std::chrono::steady_clock::time_point>, at));
    expect_done(end, at);
  }

  /// The first is told to all who wait for an event from here on, also when the stream is closed.
  void fail(const backend_error& thrown) const noexcept {
    const std::lock_guard lock(failing_);
    if (!failure_) failure_ = std::make_exception_ptr(thrown);
  }

  /// Waits for what is queued, then ends the stream: its events are reached. Ends the program where the work does not
  /// end within the watch's limit: what it writes cannot be freed.
  void close() noexcept {
    if (closed_) return;
    try {
      const std::uint64_t end = record({});
      std::optional<stream_patience> mine;
      if (watch_ != nullptr) mine.emplace(*watch_);
      while (!reached_within(end, stream_patience::slice, {}))
        if (mine && mine->look(pace()) == stream_patience::verdict::stuck) end_program();
    } catch (const backend_error& thrown) {
      fail(thrown);
    }
    const std::unique_lock lock(open_);
    closed_ = true;
    destroy();
  }

 private:
  static constexpr std::uint64_t no_place = ~std::uint64_t{0};

  // A launch comes after all that its streams were given before it was captured.
  [[nodiscard]] bool is_before_capture_of(const stream_state& other, std::uint64_t place) const noexcept {
    const std::uint64_t first = captured_from_.load(std::memory_order_acquire);
    return first != no_place && place < first && other.captured_from_.load(std::memory_order_acquire) != no_place;
  }
  // The place whose event tells of this one: itself, that behind the launch which this one was captured for, or, before
  // that, `no_place`: nobody may ask for the event of a capture.
  [[nodiscard]] std::uint64_t told_by(std::uint64_t place) const noexcept {
    const std::uint64_t other = stand_in(place).load(std::memory_order_acquire);
    return other == 0 ? place : other;
  }
  [[nodiscard]] std::atomic<std::uint64_t>& stand_in(std::uint64_t place) const noexcept {
    return stand_ins_[place % events];
  }
  [[nodiscard]] bool known_over(std::uint64_t place) const noexcept {
    const std::uint64_t told = told_by(place), known = known_over_.load(std::memory_order_acquire);
    if (told != no_place) return known >= told;
    const bool event_of_later = recorded_.load(std::memory_order_acquire) >= place + events;
    return event_of_later && known >= place;
  }
  void expect_not_captured(std::uint64_t place, where at) const {
    if (told_by(place) == no_place && !known_over(place))
      throw usage_error("what is captured as a graph does not run before its launch: nothing in it waits for it", at);
  }
  [[nodiscard]] typename Api::event_type event_of(std::uint64_t place) const noexcept { return ring_[place % events]; }

  void note_over(std::uint64_t place) const noexcept {
    std::uint64_t known = known_over_.load(std::memory_order_relaxed);
    while (known < place && !known_over_.compare_exchange_weak(known, place, std::memory_order_release)) {
    }
  }
  [[nodiscard]] bool reached_within(std::uint64_t place, std::chrono::nanoseconds at_most, where at) const {
    const std::uint64_t told = told_by(place);
    if (told == no_place) return false;
    const std::shared_lock lock(open_);
    if (closed_) return true;
    bool reached = false;
    device_->expect(api().await(event_of(told), at_most, reached), "await", 0, at);
    if (reached) note_over(told);
    return reached;
  }
  void destroy() noexcept {
    while (made_ > 0) device_->note(api().destroy_event(ring_[--made_]), "destroy_event");
    device_->note(api().destroy_stream(stream_), "destroy_stream");
  }
  [[noreturn]] void end_program() const noexcept {
    std::fprintf(stderr,
                 "belay: rank %d ends its program: what it has queued on its %s does not end, and its memory cannot be "
                 "freed before\n",
                 device_->rank(), text().c_str());
    std::terminate();
  }

  const device<Api>* device_;
  stream_kind kind_;
  std::shared_ptr<const stream_watch> watch_;
  typename Api::stream_type stream_{};
  std::array<typename Api::event_type, events> ring_{};
  mutable std::array<std::atomic<std::uint64_t>, events> stand_ins_{};  // by event; 0: its place is told by itself
  std::size_t made_ = 0;
  std::atomic<std::uint64_t> recorded_{0};
  mutable std::atomic<std::uint64_t> captured_from_{no_place};
  mutable std::atomic<std::uint64_t> known_over_{0};  // all places up to it are reached, but those of captures
  mutable std::shared_mutex open_;                    // taken alone by what closes the stream
  bool closed_ = false;
  mutable std::mutex failing_;
  mutable std::exception_ptr failure_;
};

}  // namespace belay::inline BELAY_ABI::cuda
