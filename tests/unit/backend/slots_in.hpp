// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Slots of an expert exchange of one rank in memory of any kind, one behind the other: for tests that make a few.
#pragma once

#include <cstddef>
#include <memory>

#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_clock.hpp"
#include "belay/device/stream_event.hpp"

namespace test {

template <class Memory>
struct slots_in {
  struct heap_slot {
    std::byte* first = nullptr;
    std::size_t offset = 0;
    [[nodiscard]] std::byte* local() const { return first; }
    [[nodiscard]] std::size_t offset_bytes() const { return offset; }
  };
  const Memory* memory;
  std::size_t used = 0;

  heap_slot lease(std::size_t bytes, const char* what, belay::where at) {
    const heap_slot out{memory->data() + used, used};
    used += (bytes + 255) / 256 * 256;
    if (used > memory->size_bytes()) throw belay::budget_error(what, bytes, 0, at);
    return out;
  }
  void release(const heap_slot&, belay::where) {}
  void reclaim() {}
  void follow(const std::shared_ptr<belay::stream_clock>&) {}
  void used_until(const belay::stream_event&, const heap_slot&) {}
  [[nodiscard]] std::byte* base(int) const { return memory->data(); }
  template <class Calls>
  void synchronize_in(const Calls&, belay::where) {}
  void put_bytes(int, std::size_t, std::size_t) {}
  void give_bytes(int, std::size_t, std::size_t) {}
};

}  // namespace test
