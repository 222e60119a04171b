// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Copies of little from memory of the host to that of a device, in the order of a stream: what is copied from is free
// at once, since pinned memory keeps it until the copy is over.
// IWYU pragma: private, include "belay/backend/cuda/group.hpp"
#pragma once

#include <cstddef>
#include <cstring>

#include "belay/backend/cuda/device.hpp"
#include "belay/backend/cuda/memory.hpp"
#include "belay/backend/cuda/stream.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// By one thread, into one stream.
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

}  // namespace belay::inline BELAY_ABI::cuda
