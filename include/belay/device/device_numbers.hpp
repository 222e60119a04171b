// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Numbers of a step that kernels read in the memory of the device: a plain struct, which the host writes in the order
// of a stream before each use. So what is queued has their address alone, and may be captured once and launched often.
//
//   belay::device_numbers<float, Memory> scale(engine.activations().memory());
//   scale.write(kit.stream(), 0.5F);
//   kit.each(n, belay::kernel::scale_from<float>{scale.get(), x});
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/memory.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/device/stream.hpp"
#include "belay/device/stream_event.hpp"

namespace belay::inline BELAY_ABI {

/// Stays where it is, and outlives what is queued.
template <class T, device_region Memory>
class device_numbers {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  /// In memory of the device that `memory` is in, and of the host that is copied from. Throws where there is no room.
  explicit device_numbers(const Memory& memory, where at = where::current())
      : memory_(memory.allocate(bytes, at)), staged_(memory.allocate_host(bytes, at)) {}
  device_numbers(const device_numbers&) = delete;  // kernels point to it
  device_numbers& operator=(const device_numbers&) = delete;

  /// Of the device, for kernels.
  [[nodiscard]] const T* get() const noexcept { return reinterpret_cast<const T*>(memory_.data()); }
  /// Later work of `stream` finds `value`; earlier work of it what there was. The host waits where the copy before is
  /// not over. Not in a capture.
  template <stream Stream>
  void write(Stream& stream, const T& value, where at = where::current()) {
    copied_.synchronize(at);
    std::memcpy(staged_.data(), &value, sizeof value);
    queue_copy(stream, memory_.data(), staged_.data(), sizeof value);
    copied_ = stream.record();
  }

 private:
  static constexpr std::size_t bytes = leased_size(sizeof(T));

  Memory memory_;
  decltype(std::declval<const Memory&>().allocate_host(0, where{})) staged_;
  stream_event copied_;
};

}  // namespace belay::inline BELAY_ABI
