// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A communication that was started and not yet waited for. Its buffers belong to it until `wait()` returns; the handle
// is the only way to get them back, so dropping it is an error, which the compiler sees where it can. The destructor
// never blocks: it counts the lost handle, and the rank's next call reports it in checked builds.
//
//   belay::pending sum = rank.world().start_all_reduce(std::span(grad), belay::sum);
//   compute();              // not with `grad`
//   std::move(sum).wait();  // `grad` is the sum, and the rank's again
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "belay/comm/fingerprint.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream.hpp"
#include "belay/device/stream_event.hpp"

namespace belay::inline BELAY_ABI {

/// Executes started operations in launch order; they are numbered from 1, and their ends are its places. Each ends by
/// its own limit.
class completion_source : public event_source {
 public:
  [[nodiscard]] stream_pace pace() const noexcept override { return {stream_pace::activity::waits, 0}; }
  [[nodiscard]] stream_kind kind() const noexcept override { return stream_kind::communication; }
  [[nodiscard]] std::string text() const override { return "communication stream"; }
  /// Returns when it is over; throws `comm_error` if it failed, and `usage_error` where the caller may not wait.
  virtual void wait(std::uint64_t number, operation what, where at) = 0;
  /// A stream waits for it, not the host.
  virtual void hand_to_stream(std::uint64_t number, operation what, where at) = 0;
  /// Its handle was lost; called from a destructor.
  virtual void abandon(std::uint64_t number, where started_at) noexcept = 0;

 protected:
  ~completion_source() = default;
};

/// One started communication. Move-only; owes exactly one `std::move(p).wait()`, by the thread of the rank that
/// started it, while its run lasts. Until `wait()` returns, nothing may write its buffers, nor read its outputs; what
/// its operation wrote is seen after `wait()`. Shares its source, so that a handle may outlive its run.
class [[nodiscard("a started communication owns its buffers until it is waited for")]] BELAY_OBLIGATION pending {
 public:
  /// Owes nothing: for a pending to be moved into.
  pending() noexcept {}
  /// `clock` is that of its stream, which has started it.
  BELAY_OPENS pending(std::shared_ptr<completion_source> source, std::uint64_t number, operation what, where at,
                      const stream_clock& clock = stream_clock()) noexcept
      : source_(std::move(source)), number_(number), clock_(clock), what_(what), at_(at), open_(true) {}

  /// The other one owes nothing any more.
  pending(pending && other) noexcept
      : source_(std::move(other.source_)),
        number_(other.number_),
        clock_(other.clock_),
        what_(other.what_),
        at_(other.at_),
        open_(std::exchange(other.open_, false)) {}
  /// Takes over the communication of the other handle; the one that this handle held before is abandoned.
  pending& operator=(pending&& other) noexcept {
    if (this != &other) {
      abandon();
      source_ = std::move(other.source_);
      number_ = other.number_;
      clock_ = other.clock_;
      what_ = other.what_;
      at_ = other.at_;
      open_ = std::exchange(other.open_, false);
    }
    return *this;
  }
  pending(const pending&) = delete;  // one communication is waited for once
  pending& operator=(const pending&) = delete;

  BELAY_IF_DISCHARGED ~pending() { abandon(); }

  /// Returns when the operation is over and its buffers are the caller's again. Throws `comm_error` if it
  /// failed (mismatch, peer_failed, timeout) and `usage_error` if it was waited for before, in a forked child or after
  /// the run.
  BELAY_DISCHARGES void wait(where at = where::current())&& {
    if (!open_) throw usage_error("this communication was already waited for or moved away", at);
    try {
      if (source_ != nullptr) source_->wait(number_, what_, at);
    } catch (const usage_error&) {
      throw;  // the thread that may wait for it still can
    } catch (...) {
      open_ = false;
      throw;
    }
    open_ = false;
  }

  /// Later work of `stream` begins when the operation is over and its buffers are the stream's again; the host does not
  /// wait, unless the stream runs its work at once. Where it failed, that work is skipped, and whoever waits for the
  /// stream gets the `comm_error`.
  template <stream Stream>
  BELAY_DISCHARGES void then(Stream & stream, where at = where::current())&& {
    if (!open_) throw usage_error("this communication was already waited for or moved away", at);
    const stream_event over = event();
    if constexpr (requires { stream.immediate(); }) {
      if (stream.immediate()) {
        std::move(*this).wait(at);
        return stream.wait(over, at);
      }
    }
    open_ = false;
    if (source_ != nullptr) source_->hand_to_stream(number_, what_, at);
    if constexpr (requires { stream.wait(over, at); })
      stream.wait(over, at);
    else
      stream.wait(over);
  }
  /// Leaves the end to the order of starts: communications that this rank starts later come after this one, as they do
  /// anyway, and fail where it has failed. Nothing else waits.
  BELAY_DISCHARGES void in_start_order(where at = where::current())&& {
    if (!open_) throw usage_error("this communication was already waited for or moved away", at);
    open_ = false;
    if (source_ != nullptr) source_->hand_to_stream(number_, what_, at);
  }
  /// Its end, for a stream that waits beside the one that `then` names.
  [[nodiscard]] stream_event event() const noexcept { return {source_, number_, clock_}; }

  /// True when `wait()` would not block.
  [[nodiscard]] bool ready() const noexcept { return source_ == nullptr || source_->over(number_); }

  /// True while a wait is owed.
  [[nodiscard]] bool open() const noexcept { return open_; }

  /// Hands the obligation on, as in `return std::move(p).hand_over();`.
  BELAY_DISCHARGES pending hand_over()&& noexcept {
    return pending(std::move(source_), number_, what_, at_, clock_, std::exchange(open_, false));
  }

  /// Where the operation was started.
  [[nodiscard]] where started_at() const noexcept { return at_; }

 private:
  BELAY_OPENS pending(std::shared_ptr<completion_source> source, std::uint64_t number, operation what, where at,
                      const stream_clock& clock, bool open) noexcept
      : source_(std::move(source)), number_(number), clock_(clock), what_(what), at_(at), open_(open) {}

  void abandon() noexcept {
    if (std::exchange(open_, false) && source_ != nullptr) source_->abandon(number_, at_);
  }

  std::shared_ptr<completion_source> source_;
  std::uint64_t number_ = 0;
  stream_clock clock_;
  operation what_ = operation::none;
  where at_;
  bool open_ = false;
};

/// Waits for all of `started` that are open, in order.
inline void wait_all(std::span<pending> started, where at = where::current()) {
  for (pending& one : started)
    if (one.open()) std::move(one).wait(at);
}
/// Lets `stream` wait for them instead.
template <stream Stream>
void all_then(std::span<pending> started, Stream& stream, where at = where::current()) {
  for (pending& one : started)
    if (one.open()) std::move(one).then(stream, at);
}

}  // namespace belay::inline BELAY_ABI
