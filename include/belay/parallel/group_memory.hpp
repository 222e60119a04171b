// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Memory that a group's operations work on, for those who work on it between operations: of the host, or of a device.
// IWYU pragma: private, include "belay/parallel.hpp"
#pragma once

#include <cstddef>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/kernel/for_each.hpp"

namespace belay::inline BELAY_ABI {

/// f(0) ... f(count - 1), where the group's buffers are. Returns when they are over.
template <class Group, kernel::indexed F>
void each_in_memory_of(const Group& group, std::size_t count, const F& f, where at) {
  if constexpr (works_on_device<Group>)
    group.each(count, f, at);
  else
    kernel::for_each_index(count, f);
}

/// f(0) ... f(count - 1), where the group's buffers are, as a part of a started composite, of which `calls` are the
/// operations.
template <class Calls, kernel::indexed F>
void each_among(const Calls& calls, std::size_t count, const F& f) {
  if constexpr (requires { calls.each(count, f); })
    calls.each(count, f);
  else
    kernel::for_each_index(count, f);
}

/// The operations of a started composite, `calls`, for memory of the host.
template <class Calls>
[[nodiscard]] const auto& host_calls_of(const Calls& calls) noexcept {
  if constexpr (requires { calls.control(); })
    return calls.control();
  else
    return calls;
}

/// `count` elements for the host to read: where they are, or in `room`.
template <class T, class Group>
[[nodiscard]] const T* host_view_of(const Group& group, const T* from, std::size_t count, std::vector<T>& room,
                                    where at) {
  if constexpr (works_on_device<Group>) {
    room.resize(count);
    group.fetch(room.data(), from, count * sizeof(T), at);
    return room.data();
  } else {
    return from;
  }
}

}  // namespace belay::inline BELAY_ABI
