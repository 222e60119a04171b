// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A closure that is lent to a call, and its copy in what the call queues: work of any type, kept without an allocation
// by code that does not know it.
// IWYU pragma: private, include "belay/comm.hpp"
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <type_traits>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// Bytes of the largest closure that is started.
inline constexpr std::size_t composite_room = 288;

/// Refers to a closure that outlives it.
template <class... Arguments>
struct borrowed_work {
  const void* object;
  std::size_t bytes;
  void (*call)(const void* copy, Arguments... arguments);

  template <class Work>
  [[nodiscard]] static borrowed_work of(const Work& work) noexcept {
    static_assert(
        std::is_trivially_copyable_v<Work> && sizeof(Work) <= composite_room && alignof(Work) <= 16,
        "belay: what a composite runs is kept until its turn: let it capture at most 288 bytes that can be copied "
        "byte by byte, such as pointers, spans and numbers");
    return {std::addressof(work), sizeof(Work),
            [](const void* copy, Arguments... arguments) { (*static_cast<const Work*>(copy))(arguments...); }};
  }
};

/// The copy of one. Trivially copyable.
template <class... Arguments>
class kept_work {
 public:
  explicit kept_work(const borrowed_work<Arguments...>& of) noexcept : call_(of.call) {
    std::memcpy(storage_, of.object, of.bytes);
  }
  void operator()(Arguments... arguments) const { call_(storage_, arguments...); }

 private:
  alignas(16) std::byte storage_[composite_room];
  void (*call_)(const void* copy, Arguments... arguments);
};

}  // namespace belay::inline BELAY_ABI
