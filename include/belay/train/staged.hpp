// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Numbers that the host and kernels share, such as a batch or the sums of losses: memory of the device, for kernels,
// and the host's side of it in tier host, which a run over a device registers there. The compute stream copies between
// them; where the device is the host's that is a copy too, so that a body is the same over both.
//
//   belay::staged<std::int32_t, Run> tokens(run, sequences * length, "batch");
//   tokens.write([&](std::span<std::int32_t> all) { read_batch(number, all); });  // later kernels find it
//   layer.forward(frame, belay::view<const std::int32_t, 1>{tokens.data(), {tokens.size()}});
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>

#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/device/tier.hpp"

namespace belay::inline BELAY_ABI {

/// `T` elements of a run, leased for as long as it on both sides. It belongs to the rank's thread.
template <class T, class Run>
  requires std::is_trivially_copyable_v<T>
class staged {
 public:
  /// Leases `count` elements, zeros, of tier device and as many of tier host; `purpose` is their row in the plan. The
  /// run outlives it.
  staged(Run& run, std::size_t count, const char* purpose, where at = where::current())
      : run_(&run),
        device_(run.template lease<T>(tier::device, count, purpose, at)),
        host_(run.template lease<T>(tier::host, count, purpose, at)) {}

  /// For kernels: memory of the device.
  [[nodiscard]] T* data() const noexcept { return device_.data(); }
  [[nodiscard]] std::size_t size() const noexcept { return device_.size(); }

  /// Calls `fill(elements)`, which writes the host's side, and queues its copy to the device: work of the compute
  /// stream from here on finds it. Returns before the copy is over, and begins when the one before is. A rehearsal does
  /// not call it. Throws what has failed of the copy before.
  template <std::invocable<std::span<T>> Fill>
  void write(Fill&& fill, where at = where::current()) {
    copied_.synchronize(at);
    if (!run_->rehearsing()) fill(host_);
    move(data(), host_.data());
  }
  /// Queues a copy of the device's side to the host's, for `values`.
  void fetch(where at = where::current()) {
    copied_.synchronize(at);
    move(host_.data(), data());
  }
  /// The host's side: what was written last, or fetched. Waits for the copy that is queued, and throws what has failed
  /// of it. In a rehearsal, addresses that nobody may read.
  [[nodiscard]] std::span<T> values(where at = where::current()) const {
    copied_.synchronize(at);
    return host_;
  }

 private:
  void move(T* to, const T* from) {
    if (size() == 0) return;
    auto& compute = run_->engine().compute();
    queue_copy(compute, to, from, size() * sizeof(T));
    copied_ = compute.record();
  }

  Run* run_;
  std::span<T> device_, host_;
  stream_event copied_;
};

}  // namespace belay::inline BELAY_ABI
