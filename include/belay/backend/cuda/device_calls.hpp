// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a rank's own thread does on its device between operations: kernels and copies to and from memory of the host,
// each over when its call returns. On a stream of its own: what other streams have queued is not waited for.
// IWYU pragma: private, include "belay/backend/cuda/group.hpp"
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "belay/backend/cuda/communication_memory.hpp"
#include "belay/backend/cuda/device.hpp"
#include "belay/backend/cuda/memory.hpp"
#include "belay/backend/cuda/stream.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/host_access.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/device/stream_watch.hpp"
#include "belay/kernel/for_each.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Copies of little from memory of the host to that of a device, in the order of a stream: the source is free at once,
/// since pinned memory keeps the bytes until the copy is over. By one thread, into one stream.
template <device_api Api>
class placed_copies {
 public:
  /// Bytes that are on their way at a time.
  static constexpr std::size_t room = std::size_t{1} << 16;

  placed_copies(const device<Api>& on, where at) : staged_(on, room, at) {}

  /// Queues a copy. Where there is no room left, `finish()` waits for the stream first.
  template <class Finish>
  void place(stream<Api>& in, void* to, const void* from, std::size_t bytes, where at, const Finish& finish) {
    for (std::size_t first = 0; first < bytes;) {
      if (in_use_ == room) {
        finish();
        note_finished();
      }
      const std::size_t part = lesser_of(room - in_use_, bytes - first);
      std::byte* const staged = staged_.data() + in_use_;
      std::memcpy(staged, static_cast<const std::byte*>(from) + first, part);
      in.copy(static_cast<std::byte*>(to) + first, staged, part, at);
      first += part;
      in_use_ += part;
    }
  }
  /// The stream has done all that was queued.
  void note_finished() noexcept { in_use_ = 0; }

 private:
  pinned_memory<Api> staged_;
  std::size_t in_use_ = 0;
};

/// Kernels and copies to and from memory of the host, each over when its call returns, on a stream of its own.
template <device_api Api>
class device_calls {
 public:
  /// Bytes of the device that it takes, and of the host for copies.
  static constexpr std::size_t room = bytes_of_calls, staged_bytes = std::size_t{1} << 20;

  device_calls(const device<Api>& on, const std::shared_ptr<const stream_watch>& watch, where at)
      : device_(&on),
        scratch_(on, room, at),
        staged_(pinned_memory<Api>(on, staged_bytes, at)),
        placed_(on, at),
        stream_(on, stream_kind::communication, watch, at) {}

  [[nodiscard]] cuda::stream<Api>& stream() noexcept { return stream_; }
  /// The stream for kernels, which are waited for. Throws usage_error while a graph is being captured.
  [[nodiscard]] cuda::stream<Api>& stream_for_kernels(where at) {
    expect_no_capture("a kernel between operations", at);
    return stream_;
  }
  /// Memory of the device for what one such call tells the host.
  [[nodiscard]] std::span<std::byte> scratch() const noexcept { return {scratch_.data(), room}; }

  /// For copies from the host in the order of the rank's communications, which end before this.
  [[nodiscard]] placed_copies<Api>& placed() noexcept { return placed_; }

  /// Throws usage_error, with `what` in its text, while a graph is being captured: a call that returns when the device
  /// has done its work does it at once, and in no launch of that graph.
  void expect_no_capture(const char* what, where at) const {
    if (device_->capturing())
      throw usage_error(std::string(what) +
                            " in what is captured as a graph would be done now, and in no launch: queue it on the "
                            "stream, start it, or call it outside of the captured body",
                        at);
  }

  template <kernel::indexed F>
  void each(std::size_t count, const F& f, where at) {
    stream_for_kernels(at).each(count, f);
    stream_.synchronize(at);
  }
  void fetch(void* to, const void* from, std::size_t bytes, where at) {
    expect_no_capture("a copy to the host", at);
    staged_.fetch(to, from, bytes, queue_at(at), at);
  }
  void place(void* to, const void* from, std::size_t bytes, where at) {
    expect_no_capture("a copy from the host", at);
    staged_.place(to, from, bytes, queue_at(at), at);
  }

 private:
  [[nodiscard]] auto queue_at(where at) {
    return [this, at](void* to, const void* from, std::size_t bytes) {
      stream_.copy(to, from, bytes, at);
      return stream_.record(at);
    };
  }

  const device<Api>* device_;
  device_memory<Api> scratch_;
  staged_copies<pinned_memory<Api>> staged_;
  placed_copies<Api> placed_;
  cuda::stream<Api> stream_;  // ends before the memory of its copies
};

}  // namespace belay::inline BELAY_ABI::cuda
