// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The stream on which bytes go from one tier to another, beside the one that computes. An engine makes it when
// something first asks for it. It knows how long its copies took, and how long others stood still for them.
//
//   auto& copies = engine.copies();
//   copies.wait(engine.compute().record());  // what is copied has been computed
//   copies.copy(to, from, bytes);
//   copies.let_wait(engine.compute(), copies.record());  // later work of `compute` finds the copy
#pragma once

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/span_log.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/device/stream_policy.hpp"
#include "belay/kernel/for_each.hpp"

namespace belay::inline BELAY_ABI {

/// Time that copies between tiers took, and time that computing stood still for them, in nanoseconds. Only a stream
/// with a thread of its own (`queued`) hides copies, and only its times are taken.
struct copy_times {
  /// Nanoseconds that copies took, and those that others waited for them.
  std::uint64_t copied = 0;
  std::uint64_t waited = 0;

  /// Of the time of copies, that which nothing stood still for: 0 to 1, and 0 without copies.
  [[nodiscard]] double hidden_share() const noexcept {
    if (copied == 0 || waited >= copied) return 0;
    return 1.0 - static_cast<double>(waited) / static_cast<double>(copied);
  }
};

/// One order of copies. It stays where it was made: what is queued points to it.
template <stream Stream>
class copy_stream {
 public:
  using stream_type = Stream;
  /// Whether the host may run the work, and so can take its time.
  static constexpr bool has_policy = std::constructible_from<Stream, const stream_settings&, int, stream_kind>;

  copy_stream()
    requires std::default_initializable<Stream>
      : stream_(made()) {}
  /// Of rank `rank`, whose copies run as `how` says.
  copy_stream(const stream_settings& how, int rank)
    requires has_policy
      : stream_(how, rank, stream_kind::copy), timed_(how.policy == stream_policy::queued) {}
  /// Of a stream that the caller has made.
  explicit copy_stream(Stream stream) : stream_(std::move(stream)) {}
  copy_stream(const copy_stream&) = delete;
  copy_stream& operator=(const copy_stream&) = delete;

  /// Copies `bytes` when all that was queued before is over. Both places are the copy's until then.
  void copy(void* to, const void* from, std::size_t bytes, where at = where::current()) {
    if constexpr (requires(Stream& of_device) { of_device.copy(to, from, bytes); })
      stream_.copy(to, from, bytes, at);
    else
      run_as("copy", bytes, copied_bytes{to, from, bytes}, at);
  }
  /// Runs `work()` in the order of the copies, and counts its time as theirs: a transfer of a file. Small and trivially
  /// copyable, as work of every stream is. It is work of the host: where the copies are a device's, the host waits for
  /// them, and runs it.
  template <std::invocable Work>
  void run(const Work& work, where at = where::current()) {
    if constexpr (requires(Stream& of_device, void* to) { of_device.copy(to, to, std::size_t{}); }) {
      ++host_transfers_;
      belay::synchronize(stream_, where{});
      work();
    } else {
      run_as("transfer", 0, work, at);
    }
  }

  /// f(0) ... f(count - 1) in the order of the copies: on a device as a kernel of it, whatever tiers f addresses.
  template <kernel::indexed F>
  void each(std::size_t count, const F& f) {
    if constexpr (requires(Stream & of_device) { of_device.each(count, f); })
      stream_.each(count, f);
    else
      run([count, f] { kernel::for_each_index(count, f); });
  }

  /// An event at the end of the copies that are queued.
  [[nodiscard]] stream_event record() { return stream_.record(); }
  /// Later copies begin when `mark` is reached.
  void wait(const stream_event& mark, where at = where::current()) { wait_of(stream_, mark, at); }
  /// Later work of `other` begins when `copied`, an event of this stream, is reached. For how long that keeps it is
  /// counted.
  template <stream Other>
  void let_wait(Other& other, const stream_event& copied, where at = where::current()) {
    if constexpr (has_policy) {
      if (copied.source() != nullptr && timed_) {
        other.run([times = &times_] { times->begun = now(); });
        wait_of(other, copied, at);
        return other.run(
            [times = &times_] { times->waited.fetch_add(now() - times->begun, std::memory_order_relaxed); });
      }
    }
    wait_of(other, copied, at);
  }

  /// Returns when all copies are over; throws the first failure of them. Who has computed all that there was stands
  /// still meanwhile, which is counted.
  void synchronize(where at = where::current()) {
    if (!timed_) return belay::synchronize(stream_, at);
    const std::uint64_t begun = now();
    belay::synchronize(stream_, at);
    times_.waited.fetch_add(now() - begun, std::memory_order_relaxed);
  }
  /// Returns when all copies are over, and leaves the failure of a copy to the next `synchronize`.
  void wait_until_idle(where at = where::current()) const {
    if constexpr (requires { stream_.wait_until_idle(at); }) stream_.wait_until_idle(at);
  }
  /// Skips what has not begun, and returns when what has begun is over.
  void cancel() noexcept {
    if constexpr (requires { stream_.cancel(); }) stream_.cancel();
  }

  /// Since it was made.
  [[nodiscard]] copy_times times() const noexcept {
    return {times_.copied.load(std::memory_order_relaxed), times_.waited.load(std::memory_order_relaxed)};
  }
  /// Work of the host for which it has waited for copies of a device, since it was made.
  [[nodiscard]] std::uint64_t host_transfers() const noexcept { return host_transfers_; }
  [[nodiscard]] Stream& stream() noexcept { return stream_; }

 private:
  template <std::invocable Work>
  void run_as(const char* name, std::size_t bytes, const Work& work, [[maybe_unused]] const where& at) {
    if constexpr (requires(Stream& of_host) { of_host.spans(); }) {
      if (span_log* const log = stream_.spans(); log != nullptr) [[unlikely]] {
        const queued_span traced(stream_, log->add({.name = name,
                                                    .file = at.file,
                                                    .bytes = bytes,
                                                    .line = static_cast<std::uint32_t>(at.line),
                                                    .kind = span_kind::copy,
                                                    .lane = span_lane::copy}));
        return queue(work);
      }
    }
    queue(work);
  }
  template <std::invocable Work>
  void queue(const Work& work) {
    if constexpr (has_policy) {
      if (timed_)
        return stream_.run([work, times = &times_] {
          const std::uint64_t begun = now();
          work();
          times->copied.fetch_add(now() - begun, std::memory_order_relaxed);
        });
    }
    stream_.run(work);
  }

  struct clocks {
    std::atomic<std::uint64_t> copied{0}, waited{0};
    std::uint64_t begun = 0;  // of the wait that `other` is in
  };

  [[nodiscard]] static Stream made()
    requires std::default_initializable<Stream>
  {
    if constexpr (std::constructible_from<Stream, stream_kind>)
      return Stream(stream_kind::copy);
    else
      return Stream();
  }
  [[nodiscard]] static std::uint64_t now() noexcept {
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }
  template <class Waiting>
  static void wait_of(Waiting& waiting, const stream_event& mark, where at) {
    if constexpr (requires { waiting.wait(mark, at); })
      waiting.wait(mark, at);
    else
      waiting.wait(mark);
  }

  clocks times_;
  Stream stream_;  // after what its work points to
  std::uint64_t host_transfers_ = 0;
  bool timed_ = false;
};

}  // namespace belay::inline BELAY_ABI
