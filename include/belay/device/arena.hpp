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
//   belay::lease_source_of source(arena);  // for those who must not know its kind of memory
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/ledger.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/device/lease_owners.hpp"
#include "belay/device/memory.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/device/poison.hpp"
#include "belay/device/stream.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/device/tier.hpp"

namespace belay::inline BELAY_ABI {

/// The content of an arena's free bytes. `poisoned_when_released`: numbers that are none, once somebody has had them.
/// `poisoned`: what nobody has had yet, too.
enum class freed_memory : std::uint8_t { as_it_was, poisoned_when_released, poisoned };

/// The default: checked builds find what is read too late.
inline constexpr freed_memory freed_by_default =
    checked(check_level::local) ? freed_memory::poisoned_when_released : freed_memory::as_it_was;

template <memory_region Memory>
class arena {
 public:
  /// Takes the region. `meter` is that of the tier, and outlives the arena.
  arena(tier where_it_is, Memory memory, std::size_t max_leases, tier_meter& meter)
      : memory_(std::move(memory)), leases_(memory_.size_bytes(), max_leases, &meter), tier_(where_it_is) {
    meter.count_allocation();
  }
  arena(arena&&) noexcept = default;
  arena& operator=(arena&&) noexcept = default;

  /// From here on leases are the stream's whose clock this is, and end in its order. Until then they are those of a
  /// stream that waits for no other.
  void follow(const std::shared_ptr<stream_clock>& clock) noexcept { leases_.follow(clock); }

  /// Memory for `shape` elements of T until `chain` is released. It is not zeroed: it holds what an earlier lease
  /// wrote.
  template <class T, std::size_t Rank>
  [[nodiscard]] view<T, Rank> lease(extents<Rank> shape, lease_chain& chain, where at = where::current()) {
    const auto owner = [&] { return std::string(name(tier_)) + " tier"; };
    return {reinterpret_cast<T*>(lease_bytes(tensor_bytes<T>(shape, owner, at), chain, at, mark_of<T>())), shape};
  }
  /// Memory for `owner`, who is named where somebody reads it after it was released.
  template <class T, std::size_t Rank>
  [[nodiscard]] view<T, Rank> lease(extents<Rank> shape, lease_chain& chain, const lease_owner& owner, where at) {
    const auto where_from = [&] { return std::string(name(tier_)) + " tier"; };
    const std::size_t bytes = tensor_bytes<T>(shape, where_from, at);
    return {reinterpret_cast<T*>(lease_bytes(bytes, chain, at, mark_of(kind_of_element<T>(), owner))), shape};
  }

  /// Memory of that many bytes, added to the chain. Throws budget_error where there is no hole of that size; where
  /// handles were lost that hold some of it, it names them. `mark` is `mark_of`'s.
  [[nodiscard]] std::byte* lease_bytes(std::size_t bytes, lease_chain& chain, where at = where::current(),
                                       lease_mark mark = {}) {
    const auto offset = leases_.allocate(bytes, chain, mark);
    if (!offset) [[unlikely]]
      refuse(bytes, at);
    return opened(*offset, bytes);
  }
  /// The mark of a lease: the kind of its elements, and its owner, where somebody asks for that.
  template <class T>
  [[nodiscard]] static constexpr lease_mark mark_of() noexcept {
    return {kind_of_element<T>(), 0};
  }
  [[nodiscard]] lease_mark mark_of(element_kind kind, const lease_owner& owner) const noexcept {
    return {kind, owners_ == nullptr ? std::uint16_t{0} : owners_->number(owner)};
  }

  /// Memory for `shape` elements of T until `chain` is released, for work of the stream `user` that begins after
  /// `ready`, an event of this arena's stream; `used_until` says where that work ends. It is not zeroed. Throws
  /// budget_error where there is no hole of that size.
  template <class T, std::size_t Rank>
  [[nodiscard]] view<T, Rank> lease_for(stream_kind user, const stream_event& ready, extents<Rank> shape,
                                        lease_chain& chain, where at = where::current()) {
    const auto owner = [&] { return std::string(name(tier_)) + " tier"; };
    return {
        reinterpret_cast<T*>(lease_bytes_for(user, ready, tensor_bytes<T>(shape, owner, at), chain, at, mark_of<T>())),
        shape};
  }
  [[nodiscard]] std::byte* lease_bytes_for(stream_kind user, const stream_event& ready, std::size_t bytes,
                                           lease_chain& chain, where at = where::current(), lease_mark mark = {}) {
    const auto offset = leases_.allocate_for(user, ready, bytes, chain, mark);
    if (!offset) [[unlikely]]
      refuse(bytes, at);
    return opened(*offset, bytes);
  }
  /// Work of another stream uses the bytes until `over`. Their lease may end before: nobody gets them who does not come
  /// after that. Bytes that are not the arena's are not looked at.
  void used_until(const stream_event& over, const void* first, std::size_t bytes) {
    const auto* byte = static_cast<const std::byte*>(first);
    if (bytes == 0 || std::less<>()(byte, memory_.data()) ||
        !std::less<>()(byte, memory_.data() + memory_.size_bytes()))
      return;
    leases_.used_until(over, static_cast<std::size_t>(byte - memory_.data()), bytes);
  }
  /// The host has waited for `over` itself: so what it queues from here on comes after it.
  void host_waited(const stream_event& over) noexcept { leases_.host_waited(over); }

  /// Ends all leases of the chain, in the order of the arena's stream, but those that are held.
  void release(lease_chain& chain) noexcept {
    if (poisoned_in_.run != nullptr && !chain.empty()) {
      leases_.offsets().leave_held(chain);
      poison(chain);
    }
    leases_.release(chain);
  }

  /// Overwrites what is released from here on, in the order of `stream`, with what `poison_of` says for its mark; with
  /// `poisoned`, all that there is, too. Whoever reads too early or too late gets that. `owners` gives the numbers of
  /// marks. The stream stays where it is. In a build with an address sanitizer nobody may touch what is released, where
  /// the stream runs at once.
  template <stream Stream>
  void poison_in(Stream& stream, freed_memory left = freed_memory::poisoned,
                 std::shared_ptr<lease_owners> owners = {}) {
    poisoned_in_ = {&stream, [](void* in, const poisoned_ranges& what) {
                      auto& into = *static_cast<Stream*>(in);
                      if constexpr (requires { into.each(what.words(), what); })
                        into.each(what.words(), what);
                      else
                        into.run(what);
                    }};
    owners_ = std::move(owners);
    if (left == freed_memory::poisoned) density_ = poison_density::every_byte;
    if constexpr (requires { stream.immediate(); })
      if (address_sanitizer && stream.immediate()) closed_ = {memory_.data(), memory_.size_bytes()};
    if (left == freed_memory::poisoned) poison_all();
  }
  /// From here on an error of too little room names the handles that were lost, as `obligations` knows them, which
  /// outlives the leases.
  void name_lost_of(const ledger& obligations) noexcept { obligations_ = &obligations; }

  /// Moves the lease that has `address` in it to another chain; false where `from` does not hold it.
  [[nodiscard]] bool transfer(const void* address, lease_chain& from, lease_chain& to) noexcept {
    return leases_.offsets().transfer(offset_of(address), from, to);
  }
  /// Whether a lease of the chain has `address` in it; whether the memory has.
  [[nodiscard]] bool holds(const lease_chain& chain, const void* address) const noexcept {
    return leases_.offsets().holds(chain, offset_of(address));
  }
  [[nodiscard]] bool has(const void* address) const noexcept { return offset_of(address) < memory_.size_bytes(); }

  /// All addresses may be touched again: before another arena is assigned, whose memory takes this one's place.
  void open_addresses() noexcept { closed_ = {}; }

  /// An error of too little room says `also` from here on, which is kept by address: how the bytes of this memory were
  /// found.
  void say_when_full(const char* also) noexcept { when_full_ = also; }

  /// Holds the lease that has `address` in it, so that it lives until `let_go`, whoever ends its chain before; nothing
  /// where no lease has it.
  [[nodiscard]] std::optional<offset_allocator::lease_number> hold(const void* address) noexcept {
    if (!has(address)) return std::nullopt;
    return leases_.offsets().hold(offset_of(address));
  }
  void let_go(offset_allocator::lease_number held) noexcept {
    lease_chain over = leases_.offsets().let_go(held);
    if (!over.empty()) release(over);
  }

  /// Moves every lease of `from` to `to`.
  void append(lease_chain& from, lease_chain& to) noexcept { leases_.offsets().append(from, to); }

  /// Ends every lease. Chains that still name one must not be released.
  void reclaim() noexcept { leases_.reclaim(); }

  /// The memory, who has which part of it, and its tier.
  [[nodiscard]] const Memory& memory() const noexcept { return memory_; }
  [[nodiscard]] const offset_allocator& offsets() const noexcept { return leases_.offsets(); }
  [[nodiscard]] tier where_it_is() const noexcept { return tier_; }

 private:
  // Whichever stream it is.
  struct poison_order {
    void* stream = nullptr;
    void (*run)(void* stream, const poisoned_ranges& what) = nullptr;
  };

  // Beyond the memory for what is not in it.
  [[nodiscard]] std::size_t offset_of(const void* address) const noexcept {
    return static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(address) -
                                    reinterpret_cast<std::uintptr_t>(memory_.data()));
  }
  [[nodiscard]] std::byte* opened(std::size_t offset, [[maybe_unused]] std::size_t bytes) const noexcept {
    if constexpr (address_sanitizer) closed_addresses::open(memory_.data() + offset, leased_size(bytes));
    return memory_.data() + offset;
  }

  // Bytes that another stream may still use are left as they are.
  [[gnu::noinline]] void poison(const lease_chain& chain) noexcept {
    poisoned_ranges all;
    leases_.forget_uses();
    offsets().each(chain, [&](std::size_t offset, std::size_t bytes, lease_mark mark) {
      if (leases_.used_by_others(offset, bytes)) return;
      for (std::size_t done = 0; done < bytes;) {
        done += all.add(memory_.data() + offset + done, bytes - done, mark, density_);
        if (all.full()) queue(std::exchange(all, {}));
      }
    });
    if (!all.empty()) queue(all);
    if (!closed_.watching()) return;
    offsets().each(chain, [&](std::size_t offset, std::size_t bytes) {
      if (!leases_.used_by_others(offset, bytes)) closed_addresses::close(memory_.data() + offset, bytes);
    });
  }
  void poison_all() noexcept {
    const std::size_t bytes = memory_.size_bytes() / lease_alignment * lease_alignment;
    for (std::size_t done = 0; done < bytes;) {
      poisoned_ranges all;
      done += all.add(memory_.data() + done, bytes - done, {}, poison_density::every_byte);
      queue(all);
    }
    if (closed_.watching()) closed_addresses::close(memory_.data(), bytes);
  }
  void queue(const poisoned_ranges& what) noexcept {
    try {
      poisoned_in_.run(poisoned_in_.stream, what);
    } catch (...) {
      if (owners_ != nullptr) owners_->note_failure(std::current_exception());
    }
  }

  // A function of its own, so that a lease is short enough to be inlined.
  [[noreturn, gnu::cold, gnu::noinline]] void refuse(std::size_t bytes, where at) const {
    const std::string lost = obligations_ == nullptr ? std::string() : obligations_->lost_text();
    throw budget_error(name(tier_), bytes, offsets().capacity_bytes() - offsets().live_bytes(), at,
                       lost.empty() ? when_full_ : lost);
  }

  Memory memory_;
  stream_leases leases_;
  tier tier_;
  poison_order poisoned_in_;
  const char* when_full_ = "";
  std::shared_ptr<lease_owners> owners_;
  const ledger* obligations_ = nullptr;
  // Level 2 is for those who look for something.
  poison_density density_ =
      checked(check_level::across_ranks) ? poison_density::every_byte : poison_density::some_of_each_row;
  closed_addresses closed_;  // last: it looks at the memory
};

/// An arena for those who must not know its kind of memory: leases that begin and end within a step.
class lease_source {
 public:
  /// `bytes` until `chain` is released; not zeroed. `marked` is what `mark` gave, or nothing. Throws budget_error where
  /// the arena has no room.
  [[nodiscard]] virtual std::byte* lease_bytes(std::size_t bytes, lease_chain& chain, where at, lease_mark marked) = 0;
  /// The mark of a lease of elements of that kind: its owner is named where it is read after its release.
  [[nodiscard]] virtual lease_mark mark(element_kind kind, const lease_owner& owner) const noexcept = 0;
  // As those of `arena`.
  [[nodiscard]] virtual std::byte* lease_bytes_for(stream_kind user, const stream_event& ready, std::size_t bytes,
                                                   lease_chain& chain, where at, lease_mark marked) = 0;
  virtual void used_until(const stream_event& over, const void* first, std::size_t bytes) = 0;
  virtual void host_waited(const stream_event& over) noexcept = 0;
  virtual void release(lease_chain& chain) noexcept = 0;

 protected:
  ~lease_source() = default;
};

/// The leases of `Arena`, which outlives it.
template <class Arena>
class lease_source_of final : public lease_source {
 public:
  /// The arena outlives it.
  explicit lease_source_of(Arena& from) noexcept : arena_(&from) {}

  [[nodiscard]] std::byte* lease_bytes(std::size_t bytes, lease_chain& chain, where at, lease_mark marked) override {
    return arena_->lease_bytes(bytes, chain, at, marked);
  }
  [[nodiscard]] lease_mark mark(element_kind kind, const lease_owner& owner) const noexcept override {
    return arena_->mark_of(kind, owner);
  }
  [[nodiscard]] std::byte* lease_bytes_for(stream_kind user, const stream_event& ready, std::size_t bytes,
                                           lease_chain& chain, where at, lease_mark marked) override {
    return arena_->lease_bytes_for(user, ready, bytes, chain, at, marked);
  }
  void used_until(const stream_event& over, const void* first, std::size_t bytes) override {
    arena_->used_until(over, first, bytes);
  }
  void host_waited(const stream_event& over) noexcept override { arena_->host_waited(over); }
  void release(lease_chain& chain) noexcept override { arena_->release(chain); }

 private:
  Arena* arena_;
};

}  // namespace belay::inline BELAY_ABI
