// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The stream of a host kit: one type, whose policy is chosen when the program runs.
//
//   belay::host_stream compute({belay::stream_policy::queued}, rank);
//   compute.run([=] { use(to); });
//   compute.synchronize();
#pragma once

#include <concepts>
#include <memory>
#include <type_traits>

#include "belay/core/config.hpp"
#include "belay/core/span_log.hpp"
#include "belay/core/where.hpp"
#include "belay/device/queue_stream.hpp"
#include "belay/device/stream.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/device/stream_policy.hpp"

namespace belay::inline BELAY_ABI {

class host_stream : public counted_stream {
 public:
  /// Runs work at once, on the calling thread.
  explicit host_stream(stream_kind kind = stream_kind::compute) : counted_stream(kind) {}
  /// Runs it as `how` says: a stream of rank `rank`.
  explicit host_stream(const stream_settings& how, int rank = 0, stream_kind kind = stream_kind::compute)
      : counted_stream(kind), runs_nothing_(how.policy == stream_policy::rehearsal) {
    if (how.policy == stream_policy::queued) queue_ = std::make_unique<queue_stream>(kind, how.watch);
    if (how.policy == stream_policy::adversarial) queue_ = std::make_unique<queue_stream>(how.arbiter, rank, kind);
  }

  /// Runs `work()` in this stream's order. It is kept by value until it has run: trivially copyable, at most 288 bytes.
  template <std::invocable Work>
  void run(const Work& work) {
    if (runs_nothing_) return;
    if (queue_ == nullptr)
      work();
    else
      queue_->run(work);
  }
  /// Whether it is a rehearsal's, whose work is not run.
  [[nodiscard]] bool runs_nothing() const noexcept { return runs_nothing_; }
  [[nodiscard]] stream_event record() {
    return (queue_ == nullptr ? stream_event{} : queue_->record()).at(counted_stream::mark());
  }
  /// Later work begins when `mark` is reached; a stream that runs at once blocks its caller until then.
  void wait(const stream_event& mark, where at = where::current()) {
    if (spans_ != nullptr) [[unlikely]]
      return traced_wait(mark, at);
    join_after(mark, at);
  }
  /// Returns when all work is over; rethrows the first exception of it. Throws a `comm_error` where it is stuck.
  void synchronize(where at = where::current()) {
    if (queue_ == nullptr) return;
    const span_timer waits(spans_ == nullptr ? nullptr : add_wait(spans_, span_lane::host, queue_->record(), at));
    queue_->synchronize(at);
  }
  /// Returns when all work is over, and leaves its exception to the next `synchronize`. Throws a `comm_error` where it
  /// is stuck.
  void wait_until_idle(where at = where::current()) const {
    if (queue_ == nullptr) return;
    const span_timer waits(spans_ == nullptr ? nullptr : add_wait(spans_, span_lane::host, queue_->record(), at));
    queue_->wait_until_idle(at);
  }
  /// Skips what is queued and has not begun, and waits for no event any more.
  void cancel() noexcept {
    if (queue_ != nullptr) queue_->cancel();
  }
  /// Whether work runs when it is given.
  [[nodiscard]] bool immediate() const noexcept { return queue_ == nullptr; }

  /// Waits of this stream, and for it, are spans of `log` from now on; null: of none.
  void trace_into(span_log* log) noexcept { spans_ = log; }
  [[nodiscard]] span_log* spans() const noexcept { return spans_; }

 private:
  void join_after(const stream_event& mark, where at) {
    if (queue_ == nullptr)
      mark.synchronize(at);
    else
      queue_->wait(mark, at);
    join(mark);
  }
  [[gnu::cold, gnu::noinline]] void traced_wait(const stream_event& mark, where at) {
    const queued_span waits(*this, add_wait(spans_, lane_of(kind()), mark, at));
    join_after(mark, at);
  }

  std::unique_ptr<queue_stream> queue_;
  span_log* spans_ = nullptr;
  bool runs_nothing_ = false;
};

static_assert(clocked_stream<host_stream>);

}  // namespace belay::inline BELAY_ABI
