// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// An arena is a region of exact size and the allocator that divides it. Leases are grouped in chains that end
// together: what one invocation keeps, or what one call uses as scratch. A lease beyond the capacity is a
// budget_error; an arena never grows.
//
//   belay::tier_meters meters;
//   belay::arena arena(belay::tier::device, belay::host_pages(1 << 20), 64, meters[belay::tier::device]);
//   belay::lease_chain chain;
//   const belay::view<float, 2> x = arena.lease<float>(belay::extents<2>{4, 256}, chain);
//   arena.release(chain);
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/view.hpp"
#include "belay/device/host_stream.hpp"
#include "belay/device/memory.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/device/tier.hpp"

namespace belay::inline BELAY_ABI {

template <memory_region Memory>
class arena {
 public:
  /// Takes the region. `meter` is that of the tier, and outlives the arena.
  arena(tier where_it_is, Memory memory, std::size_t max_leases, tier_meter& meter)
      : memory_(std::move(memory)), offsets_(memory_.size_bytes(), max_leases, &meter), tier_(where_it_is) {
    meter.count_allocation();
  }
  arena(arena&&) noexcept = default;
  arena& operator=(arena&&) noexcept = default;

  /// Memory for `shape` elements of T until `chain` is released. It is not zeroed: it holds what an earlier lease
  /// wrote.
  template <class T, std::size_t Rank>
  [[nodiscard]] view<T, Rank> lease(extents<Rank> shape, lease_chain& chain, where at = where::current()) {
    const auto owner = [&] { return std::string(name(tier_)) + " tier"; };
    return {reinterpret_cast<T*>(lease_bytes(tensor_bytes<T>(shape, owner, at), chain, at)), shape};
  }

  [[nodiscard]] std::byte* lease_bytes(std::size_t bytes, lease_chain& chain, where at = where::current()) {
    const auto offset = offsets_.allocate(bytes, chain);
    if (!offset) [[unlikely]]
      refuse(bytes, at);
    return memory_.data() + *offset;
  }

  void release(lease_chain& chain) noexcept {
    if (poisoned_in_ != nullptr) [[unlikely]]
      offsets_.each(chain, [&](std::size_t offset, std::size_t bytes) { poison(offset, bytes); });
    offsets_.release(chain);
  }

  /// Overwrites what is released from here on, in the order of `stream`, and all that there is: with a word that is NaN
  /// as float, double and bf16, and neither -1 nor an index as an integer. Whoever reads too early or too late gets it.
  void poison_in(host_stream& stream) {
    poisoned_in_ = &stream;
    poison(0, memory_.size_bytes());
  }

  /// Moves the lease that begins at `address` to another chain; false where `from` does not hold it.
  [[nodiscard]] bool transfer(const void* address, lease_chain& from, lease_chain& to) noexcept {
    const auto* byte = static_cast<const std::byte*>(address);
    return offsets_.transfer(static_cast<std::size_t>(byte - memory_.data()), from, to);
  }

  /// Ends every lease. Chains that still name one must not be released.
  void reclaim() noexcept { offsets_.clear(); }

  [[nodiscard]] const Memory& memory() const noexcept { return memory_; }
  [[nodiscard]] const offset_allocator& offsets() const noexcept { return offsets_; }
  [[nodiscard]] tier where_it_is() const noexcept { return tier_; }

 private:
  void poison(std::size_t offset, std::size_t bytes) const {
    poisoned_in_->run([first = reinterpret_cast<std::uint32_t*>(memory_.data() + offset), words = bytes / 4] {
      for (std::size_t i = 0; i < words; ++i) first[i] = 0xFFFAFFFAU;
    });
  }

  // A function of its own, so that a lease is short enough to be inlined.
  [[noreturn, gnu::cold, gnu::noinline]] void refuse(std::size_t bytes, where at) const {
    throw budget_error(name(tier_), bytes, offsets_.capacity_bytes() - offsets_.live_bytes(), at);
  }

  Memory memory_;
  offset_allocator offsets_;
  tier tier_;
  host_stream* poisoned_in_ = nullptr;
};

}  // namespace belay::inline BELAY_ABI
