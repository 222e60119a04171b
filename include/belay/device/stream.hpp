// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A stream runs work in the order in which it was given. An event marks a point in that order. Everything that starts
// work names its stream; there is no default one. Spans of what a stream runs have times that are written in its order,
// by the thread that runs its work.
//
//   belay::queue_stream compute, copies;
//   copies.run([=] { std::memcpy(to, from, bytes); });
//   compute.wait(copies.record());  // later work of `compute` begins when the copy is done
//   compute.run([=] { use(to); });
//   compute.synchronize();
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "belay/core/config.hpp"
#include "belay/core/span_log.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_event.hpp"

namespace belay::inline BELAY_ABI {

/// A stream keeps the order of its work. `run(f)` queues `f()`, which runs once, where the kernels of the stream run:
/// on the host, or on a device, for which it is marked. An asynchronous stream needs it to be small and trivially
/// copyable. `record()` marks the current end of the queue. `wait(event)` makes later work wait for an event of any
/// stream. `synchronize()` returns when all queued work is done, and throws the first failure of it.
template <class S>
concept stream = requires(S& s, void (*work)(), const stream_event& mark) {
  s.run(work);
  { s.record() } -> std::same_as<stream_event>;
  s.wait(mark);
  s.synchronize();
};

/// A stream of a device, with copies of its own: it runs beside the host, and its work is marked for the device.
template <class S>
concept device_stream = stream<S> && requires(S& s, void* to, const void* from, std::size_t bytes) {
  s.copy(to, from, bytes);
};

/// Whether what the stream is given may run after the call that gives it.
template <stream Stream>
[[nodiscard]] bool runs_later([[maybe_unused]] const Stream& given) noexcept {
  if constexpr (requires { given.immediate(); })
    return !given.immediate();
  else
    return device_stream<Stream>;
}

/// A stream that counts what its later work comes after: `record()` marks its clock, `wait(event)` joins the event's.
/// Memory of an engine goes from one stream to another by these clocks (device/arena.hpp).
template <class S>
concept clocked_stream = stream<S> && requires(const S& s) {
  { s.clock() } -> std::same_as<const std::shared_ptr<stream_clock>&>;
};

/// The clock of a stream that has no order with others but by events. A moved-from stream has none.
class counted_stream {
 public:
  /// Counts the places of a stream of that kind.
  explicit counted_stream(stream_kind kind) : kind_(kind), clock_(std::make_shared<stream_clock>(kind, 1)) {}

  /// Where the stream has been joined, as far as it knows.
  [[nodiscard]] const std::shared_ptr<stream_clock>& clock() const noexcept { return clock_; }
  [[nodiscard]] stream_kind kind() const noexcept { return kind_; }

 protected:
  /// The next place of the stream; what it knows about others after waiting for that event.
  [[nodiscard]] stream_clock mark() noexcept { return clock_->mark(kind_); }
  void join(const stream_event& mark) noexcept { clock_->join(mark.clock()); }

 private:
  stream_kind kind_;
  std::shared_ptr<stream_clock> clock_;
};

/// Runs work at once, on the calling thread.
class immediate_stream : public counted_stream {
 public:
  /// Runs what it is given before it returns.
  explicit immediate_stream(stream_kind kind = stream_kind::compute) : counted_stream(kind) {}

  /// Runs the work now; the event is over when it is made, and nothing is waited for.
  template <std::invocable Work>
  void run(Work&& work) {
    work();
  }
  [[nodiscard]] stream_event record() noexcept { return stream_event().at(mark()); }
  void wait(const stream_event& mark) {
    mark.synchronize();
    join(mark);
  }
  void synchronize() const noexcept {}
};

/// `stream.synchronize()`, for the wait at `at` where the stream says of which wait an error is.
template <stream Stream>
void synchronize(Stream& stream, where at) {
  if constexpr (requires { stream.synchronize(at); })
    stream.synchronize(at);
  else
    stream.synchronize();
}

/// Whether a stream runs nothing, so that only sizes and order matter: that of a rehearsal.
template <stream Stream>
[[nodiscard]] constexpr bool runs_nothing(const Stream& stream) noexcept {
  if constexpr (requires { stream.runs_nothing(); })
    return stream.runs_nothing();
  else
    return false;
}

/// Copies bytes of the host; the places do not overlap.
struct copied_bytes {
  /// Copies so many bytes, which do not overlap.
  void* to;
  const void* from;
  std::size_t bytes;
  void operator()() const noexcept { std::memcpy(to, from, bytes); }
};

/// Copies `bytes` in the order of `stream`: by a copy of its device, where it has one (`stream.copy`), which may be
/// from or to the host's memory; else by work of its own. Both places are the copy's until it is over.
template <stream Stream>
void queue_copy(Stream& stream, void* to, const void* from, std::size_t bytes) {
  if constexpr (device_stream<Stream>)
    stream.copy(to, from, bytes);
  else
    stream.run(copied_bytes{to, from, bytes});
}

static_assert(clocked_stream<immediate_stream>);

/// The lane in a trace of a stream of that kind.
[[nodiscard]] constexpr span_lane lane_of(stream_kind which) noexcept {
  return which == stream_kind::compute         ? span_lane::compute
         : which == stream_kind::communication ? span_lane::communication
                                               : span_lane::copy;
}

/// The name of a span of a wait for a stream of kind `of`.
[[nodiscard]] constexpr const char* wait_name(stream_kind of) noexcept {
  switch (of) {
    case stream_kind::compute: return "wait for compute";
    case stream_kind::communication: return "wait for communication";
    case stream_kind::copy: return "wait for copy";
  }
  return "wait";
}

/// A wait in `lane` for `mark`: null without a log, and where nobody has to wait.
[[nodiscard]] inline traced_span* add_wait(span_log* to, span_lane lane, const stream_event& mark, const where& at) {
  if (to == nullptr || mark.ready()) return nullptr;
  return to->add({.name = wait_name(mark.source()->kind()),
                  .file = at.file,
                  .line = static_cast<std::uint32_t>(at.line),
                  .kind = span_kind::wait,
                  .lane = lane});
}

/// A stream that times its spans itself, because what it runs cannot write to the host's memory.
template <class S>
concept span_timing_stream = requires(S& stream, traced_span* of) {
  stream.begin_span(of);
  stream.end_span(of);
};

/// Lasts in the order of `stream` from what it has been given before to what it has been given when this goes. The
/// stream of a device that times no spans has none: it does not run the host's clock.
template <class Stream>
class queued_span {
 public:
  /// Of nothing where `of` is null. The stream outlives it.
  queued_span(Stream& stream, traced_span* of) : stream_(&stream), of_(of) {
    if (of_ == nullptr) return;
    if constexpr (span_timing_stream<Stream>)
      stream_->begin_span(of);
    else if constexpr (!device_stream<Stream>)
      stream_->run([of] { of->begin_at(span_log::now()); });
  }
  queued_span(const queued_span&) = delete;
  queued_span& operator=(const queued_span&) = delete;
  ~queued_span() {
    if (of_ == nullptr) return;
    try {
      if constexpr (span_timing_stream<Stream>)
        stream_->end_span(of_);
      else if constexpr (!device_stream<Stream>)
        stream_->run([of = of_] { of->end_at(span_log::now()); });
    } catch (...) {  // a stream that is stuck says so to whoever queues next; this span is not over
      return;
    }
  }

 private:
  Stream* stream_;
  traced_span* of_;
};

}  // namespace belay::inline BELAY_ABI
