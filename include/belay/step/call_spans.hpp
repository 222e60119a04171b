// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The watch of a step that computes: while it is traced, a layer's call is a span of the compute stream, and what a
// tier has leased is noted after it; a listener is told of each call, such as one that names it for a profiler. Else a
// call costs one branch.
// IWYU pragma: private, include "belay/step.hpp"
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/span_log.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream.hpp"
#include "belay/device/tier.hpp"
#include "belay/step/rehearsal_watch.hpp"

namespace belay::inline BELAY_ABI {

/// A stream whose waits can be spans: its work may write to the host's memory.
template <class S>
concept traced_stream = requires(S& stream, span_log* log) {
  stream.trace_into(log);
};

/// Told of layers' calls as they are queued, on the rank's thread. Calls nest.
class call_listener {
 public:
  virtual void begin(const call_under_way& now) noexcept = 0;
  virtual void end() noexcept = 0;
  /// A part of step `step`, in which no layer is called, is launched as a graph.
  virtual void begin_launch(const char* part, std::uint64_t step) noexcept {
    static_cast<void>(part), static_cast<void>(step);
  }
  virtual void end_launch() noexcept {}

 protected:
  ~call_listener() = default;
};

template <traced_stream Stream>
class call_spans {
 public:
  /// `listener`, which outlives the steps, is told of calls from now on.
  void tell_calls(call_listener& listener) noexcept { listener_ = &listener; }
  /// Calls of layers, in the order of `stream`, are spans of `log` from now on, with the live bytes of `meters`, where
  /// there are some. A null log: of none.
  void trace_into(span_log* log, Stream& stream, const tier_meters* meters) noexcept {
    log_ = log;
    stream_ = &stream;
    meters_ = meters;
    noted_.fill(unknown);
    note_memory();
  }
  [[nodiscard]] span_log* log() const noexcept { return log_; }
  /// The bytes that tiers have leased now, where they have changed.
  void note_memory() noexcept {
    if (log_ == nullptr || meters_ == nullptr) return;
    for (std::size_t t = 0; t < tier_count; ++t) {
      const std::uint64_t live = (*meters_)[static_cast<tier>(t)].live_bytes();
      if (live == noted_[t] || (live == 0 && noted_[t] == unknown)) continue;
      noted_[t] = live;
      const std::int64_t now = span_log::now();
      static_cast<void>(log_->add(
          {.name = name(static_cast<tier>(t)), .begin = now, .end = now, .bytes = live, .kind = span_kind::memory}));
    }
  }

  class mark;
  /// The running calls, which another flow of control interrupts: they end in trace and listener, and begin again when
  /// they are taken up.
  using calls_aside = mark*;
  [[nodiscard]] calls_aside set_aside() noexcept {
    for (mark* one = innermost_; one != nullptr; one = one->outer_) one->end_part();
    return std::exchange(innermost_, nullptr);
  }
  void take_up(calls_aside calls) noexcept {
    innermost_ = calls;
    if (calls != nullptr) calls->begin_parts();
  }

  /// The running call while the mark exists. Marks nest.
  class mark {
   public:
    mark(call_spans& owner, const call_under_way& now) {
      if (owner.log_ != nullptr || owner.listener_ != nullptr) [[unlikely]]
        begin(owner, now);
    }
    mark(const mark&) = delete;
    mark& operator=(const mark&) = delete;
    ~mark() {
      if (owner_ != nullptr) [[unlikely]]
        end();
    }

   private:
    friend class call_spans;
    [[gnu::cold, gnu::noinline]] void begin(call_spans& owner, const call_under_way& now) {
      owner_ = &owner;
      now_ = now;
      begin_part();
      outer_ = std::exchange(owner.innermost_, this);
    }
    void begin_part() {
      if (owner_->log_ != nullptr) trace(*owner_, *now_);
      if (owner_->listener_ != nullptr) owner_->listener_->begin(*now_);
    }
    // Of this call and those around it, the outermost first. A stream that is stuck says so to whoever queues next.
    void begin_parts() noexcept {
      if (outer_ != nullptr) outer_->begin_parts();
      try {
        begin_part();
      } catch (...) {
      }
    }
    void end_part() noexcept {
      if (owner_->listener_ != nullptr) owner_->listener_->end();
      traced_.reset();
      owner_->note_memory();
    }
    void trace(call_spans& owner, const call_under_way& now) {
      traced_.emplace(*owner.stream_, owner.log_->add({.name = now.layer,
                                                       .call = name(now.what),
                                                       .file = now.opened_at.file,
                                                       .line = static_cast<std::uint32_t>(now.opened_at.line),
                                                       .layer = static_cast<std::uint32_t>(now.layer_index),
                                                       .micro_batch = static_cast<std::uint32_t>(now.micro_batch),
                                                       .kind = span_kind::layer,
                                                       .lane = span_lane::compute}));
    }
    [[gnu::cold, gnu::noinline]] void end() noexcept {
      end_part();
      owner_->innermost_ = outer_;
    }

    call_spans* owner_ = nullptr;  // while it is traced, or told
    std::optional<queued_span<Stream>> traced_;
    std::optional<call_under_way> now_;
    mark* outer_ = nullptr;  // that began before it
  };

  /// The launch of a graph while it exists.
  class launch_mark {
   public:
    /// Tells the listener of it.
    launch_mark(const call_spans& owner, const char* part, std::uint64_t step) noexcept : told_(owner.listener_) {
      if (told_ != nullptr) told_->begin_launch(part, step);
    }
    launch_mark(const launch_mark&) = delete;
    launch_mark& operator=(const launch_mark&) = delete;
    ~launch_mark() {
      if (told_ != nullptr) told_->end_launch();
    }

   private:
    call_listener* told_;
  };

 private:
  static constexpr std::uint64_t unknown = ~std::uint64_t{0};

  span_log* log_ = nullptr;
  call_listener* listener_ = nullptr;
  Stream* stream_ = nullptr;
  const tier_meters* meters_ = nullptr;
  mark* innermost_ = nullptr;
  std::array<std::uint64_t, tier_count> noted_{};  // by tier, last
};

/// The watch of an engine that computes, or is rehearsed by one that wants faults explained.
template <traced_stream Stream>
class switched_watch {
 public:
  /// Explains faults of steps from now on, between steps: in a rehearsal.
  void explain_faults() noexcept {
    explains_ = true;
    faults_.explain_faults();
  }

  void trace_into(span_log* log, Stream& stream, const tier_meters* meters) noexcept {
    spans_.trace_into(log, stream, meters);
  }
  [[nodiscard]] span_log* log() const noexcept { return spans_.log(); }
  /// `listener`, which outlives the steps, is told of layers' calls from now on.
  void tell_calls(call_listener& listener) noexcept { spans_.tell_calls(listener); }
  /// The launch of a graph, which the listener is told of, while that exists.
  [[nodiscard]] typename call_spans<Stream>::launch_mark mark_launch(const char* part, std::uint64_t step) noexcept {
    return {spans_, part, step};
  }

  /// `bytes` from `first` are addresses without memory until `end`, where faults are explained.
  void begin(const std::byte* first, std::size_t bytes, where at) {
    if (explains_) faults_.begin(first, bytes, at);
  }
  void end() noexcept {
    if (explains_) faults_.end();
  }

  /// The running calls, which another flow of control interrupts, until they are taken up.
  struct calls_aside {
    typename call_spans<Stream>::calls_aside traced;
    rehearsal_watch::calls_aside rehearsed;
  };
  [[nodiscard]] calls_aside set_aside() noexcept { return {spans_.set_aside(), faults_.set_aside()}; }
  void take_up(const calls_aside& calls) noexcept {
    spans_.take_up(calls.traced);
    faults_.take_up(calls.rehearsed);
  }

  /// The running call while the mark exists. Marks nest.
  class mark {
   public:
    mark(switched_watch& owner, const call_under_way& now) : traced_(owner.spans_, now) {
      if (owner.explains_) [[unlikely]]
        rehearsed_.emplace(owner.faults_, now);
    }

   private:
    typename call_spans<Stream>::mark traced_;
    std::optional<rehearsal_watch::mark> rehearsed_;
  };

 private:
  call_spans<Stream> spans_;
  rehearsal_watch faults_;
  bool explains_ = false;
};

}  // namespace belay::inline BELAY_ABI
