// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// An arena is a region of exact size and the allocator that divides it. Leases are grouped in chains that end
// together: what one invocation keeps, or what one call uses as scratch. A lease beyond the capacity is a
// budget_error; an arena never grows.
//
// A lease is for the compute stream of its engine, or for another stream: for work that begins after an event. What is
// released is free for that stream at once, and for another one when that has queued a wait for a later event.
//
//   belay::tier_meters meters;
//   belay::arena arena(belay::tier::device, belay::host_pages(1 << 20), 64, meters[belay::tier::device]);
//   belay::lease_chain chain;
//   const belay::view<float, 2> x = arena.lease<float>(belay::extents<2>{4, 256}, chain);
//   arena.release(chain);
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/view.hpp"
#include "belay/device/memory.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/device/stream.hpp"
#include "belay/device/stream_clock.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/device/tier.hpp"
#include "belay/device/uses_in_flight.hpp"

namespace belay::inline BELAY_ABI {

/// What an arena's free bytes hold.
enum class freed_memory : std::uint8_t { as_it_was, poisoned };

/// Overwrites words with one that is NaN as float, double and bf16, and neither -1 nor an index as an integer.
struct poisoned_words {
  /// Writes the pattern that checked builds look for to `count` words.
  std::uint32_t* first;
  std::size_t count;
  BELAY_HD void operator()() const noexcept {
    for (std::size_t i = 0; i < count; ++i) first[i] = 0xFFFAFFFAU;
  }
};

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

  /// From here on leases are the stream's whose clock this is, and end in its order. Until then they are those of a
  /// stream that waits for no other.
  void follow(const std::shared_ptr<stream_clock>& clock) noexcept { clock_ = clock; }

  /// Memory for `shape` elements of T until `chain` is released. It is not zeroed: it holds what an earlier lease
  /// wrote.
  template <class T, std::size_t Rank>
  [[nodiscard]] view<T, Rank> lease(extents<Rank> shape, lease_chain& chain, where at = where::current()) {
    const auto owner = [&] { return std::string(name(tier_)) + " tier"; };
    return {reinterpret_cast<T*>(lease_bytes(tensor_bytes<T>(shape, owner, at), chain, at)), shape};
  }

  /// Memory of that many bytes, added to the chain. Throws budget_error where there is no hole of that size.
  [[nodiscard]] std::byte* lease_bytes(std::size_t bytes, lease_chain& chain, where at = where::current()) {
    const auto offset = offsets_.allocate(bytes, chain, *clock_);
    if (!offset) [[unlikely]]
      refuse(bytes, at);
    return memory_.data() + *offset;
  }

  /// The same for work of the stream `user` that begins after `ready`, an event of this arena's stream: that work is
  /// said by `used_until`.
  template <class T, std::size_t Rank>
  [[nodiscard]] view<T, Rank> lease_for(stream_kind user, const stream_event& ready, extents<Rank> shape,
                                        lease_chain& chain, where at = where::current()) {
    const auto owner = [&] { return std::string(name(tier_)) + " tier"; };
    return {reinterpret_cast<T*>(lease_bytes_for(user, ready, tensor_bytes<T>(shape, owner, at), chain, at)), shape};
  }
  [[nodiscard]] std::byte* lease_bytes_for(stream_kind user, const stream_event& ready, std::size_t bytes,
                                           lease_chain& chain, where at = where::current()) {
    const auto offset = offsets_.allocate(bytes, chain, ready.clock().within(user));
    if (!offset) [[unlikely]]
      refuse(bytes, at);
    if (bytes > 0) in_flight_.add(*offset, bytes, stream_clock::unknown(), *clock_);
    return memory_.data() + *offset;
  }
  /// Work of another stream uses the bytes until `over`. Their lease may end before: nobody gets them who does not come
  /// after that. Bytes that are not the arena's are not looked at.
  void used_until(const stream_event& over, const void* first, std::size_t bytes) {
    const auto* byte = static_cast<const std::byte*>(first);
    if (bytes == 0 || std::less<>()(byte, memory_.data()) ||
        !std::less<>()(byte, memory_.data() + memory_.size_bytes()))
      return;
    in_flight_.add(static_cast<std::size_t>(byte - memory_.data()), bytes, over.clock(), *clock_);
  }
  /// The host has waited for `over` itself: so what it queues from here on comes after it.
  void host_waited(const stream_event& over) noexcept { clock_->join(over.clock()); }

  /// Ends all leases of the chain, in the order of the arena's stream.
  void release(lease_chain& chain) noexcept {
    if (!in_flight_.empty()) [[unlikely]]
      in_flight_.forget(*clock_);
    if (poisoned_in_.run != nullptr) [[unlikely]]
      offsets_.each(chain, [&](std::size_t offset, std::size_t bytes) {
        if (!in_flight_.within(offset, bytes)) poison(offset, bytes);
      });
    if (in_flight_.empty()) [[likely]]
      return offsets_.release(chain, *clock_);
    release_used(chain);
  }

  /// Overwrites what is released from here on, in the order of `stream`, and all that there is, with `poisoned_words`.
  /// Whoever reads too early or too late gets them. The stream stays where it is.
  template <stream Stream>
  void poison_in(Stream& stream) {
    poisoned_in_ = {&stream, [](void* in, const poisoned_words& what) { static_cast<Stream*>(in)->run(what); }};
    poison(0, memory_.size_bytes());
  }

  /// Moves the lease that begins at `address` to another chain; false where `from` does not hold it.
  [[nodiscard]] bool transfer(const void* address, lease_chain& from, lease_chain& to) noexcept {
    const auto* byte = static_cast<const std::byte*>(address);
    return offsets_.transfer(static_cast<std::size_t>(byte - memory_.data()), from, to);
  }

  /// What has no room from here on says `also`, which is kept by address: how the bytes of this memory were found.
  void say_when_full(const char* also) noexcept { when_full_ = also; }

  /// Moves every lease of `from` to `to`.
  void append(lease_chain& from, lease_chain& to) noexcept { offsets_.append(from, to); }

  /// Ends every lease. Chains that still name one must not be released.
  void reclaim() noexcept {
    in_flight_.forget(*clock_);
    stream_clock used(stream_kind::compute, clock_->place(stream_kind::compute));
    in_flight_.join_known(used);
    offsets_.clear(used);
  }

  /// The memory, who has which part of it, and its tier.
  [[nodiscard]] const Memory& memory() const noexcept { return memory_; }
  [[nodiscard]] const offset_allocator& offsets() const noexcept { return offsets_; }
  [[nodiscard]] tier where_it_is() const noexcept { return tier_; }

 private:
  // Whichever stream it is.
  struct poison_order {
    void* stream = nullptr;
    void (*run)(void* stream, const poisoned_words& what) = nullptr;
  };

  void poison(std::size_t offset, std::size_t bytes) const {
    poisoned_in_.run(poisoned_in_.stream, {reinterpret_cast<std::uint32_t*>(memory_.data() + offset), bytes / 4});
  }

  // Something is used by another stream.
  [[gnu::noinline]] void release_used(lease_chain& chain) noexcept {
    const stream_clock here(stream_kind::compute, clock_->place(stream_kind::compute));
    const auto used_by = [&](std::size_t offset, std::size_t bytes) {
      stream_clock used = here;
      in_flight_.join(offset, bytes, used);
      return used;
    };
    offsets_.release(chain, used_by, *clock_);
  }

  // A function of its own, so that a lease is short enough to be inlined.
  [[noreturn, gnu::cold, gnu::noinline]] void refuse(std::size_t bytes, where at) const {
    throw budget_error(name(tier_), bytes, offsets_.capacity_bytes() - offsets_.live_bytes(), at, when_full_);
  }

  Memory memory_;
  offset_allocator offsets_;
  tier tier_;
  poison_order poisoned_in_;
  const char* when_full_ = "";
  std::shared_ptr<stream_clock> clock_ = std::make_shared<stream_clock>(stream_kind::compute, 1);
  uses_in_flight in_flight_;
};

}  // namespace belay::inline BELAY_ABI
