// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Memory that all ranks have mapped: the scoreboard, the hand-written baseline's lines, and all ranks' buffers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "belay/comm/symmetric.hpp"
#include "collectives/unchecked_baseline.hpp"

namespace bench {

/// Where it comes from depends on what a rank is; here it is leased from a symmetric heap.
template <class Group>
class buffers {
 public:
  buffers(const Group& group, std::size_t buffer_bytes)
      : heap_(group, {.bytes = 2 * (buffer_bytes + 4096) + room + unchecked_baseline::bytes(group.size()) + 4096}),
        small_(heap_.lease(room, "scoreboard")),
        unchecked_baseline_(heap_.lease(unchecked_baseline::bytes(group.size()) + 128, "bare")),
        in_(heap_.lease(buffer_bytes + 64, "in")),
        out_(heap_.lease(buffer_bytes + 64, "out")) {}

  // Small lines of all ranks are in the first rank's memory, zero at first.
  [[nodiscard]] std::byte* scoreboard_lines() const { return aligned(small_.at(0)); }
  [[nodiscard]] std::byte* baseline_lines() const { return aligned(small_.at(0)) + room / 2; }
  [[nodiscard]] std::byte* unchecked_baseline_memory() const { return aligned(unchecked_baseline_.at(0)); }
  [[nodiscard]] std::byte* in(int rank) const { return in_.at(rank); }
  [[nodiscard]] std::byte* out(int rank) const { return out_.at(rank); }

 private:
  static constexpr std::size_t room = 64 * 1024;
  [[nodiscard]] static std::byte* aligned(std::byte* p) {
    return p + (128 - reinterpret_cast<std::uintptr_t>(p) % 128) % 128;
  }

  belay::symmetric_heap<Group> heap_;
  typename belay::symmetric_heap<Group>::heap_slot small_, unchecked_baseline_, in_, out_;
};

}  // namespace bench
