// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Hands out byte ranges of a region that it never touches. The same sequence of requests gives the same offsets, on
// every rank and in the rehearsal that sizes the region: the extent that the rehearsal reached is the size of the
// arena, and no fragmentation is discovered at run time. It is an address-ordered first-fit allocator with coalescing.
// A free range remembers what has used it, and is given only to what comes after that (device/stream_event.hpp). All
// nodes exist from the start, so it allocates nothing later.
//
//   belay::offset_allocator offsets(std::size_t{1} << 20, 64);
//   belay::lease_chain chain;
//   const std::optional<std::size_t> at = offsets.allocate(4096, chain);  // nothing where the region is full
//   offsets.release(chain);                                               // ends all leases of the chain
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/where.hpp"
#include "belay/device/poison.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/device/tier.hpp"

namespace belay::inline BELAY_ABI {

/// Alignment and granularity of every lease, in bytes: one cache line.
inline constexpr std::size_t lease_alignment = 64;

/// Bytes that a lease of `bytes` takes. Where `bytes` is more than any memory holds, so is the result.
[[nodiscard]] constexpr std::size_t leased_size(std::size_t bytes) noexcept {
  if (bytes > largest_size) [[unlikely]]
    return unlimited_bytes;
  return (bytes + lease_alignment - 1) / lease_alignment * lease_alignment;
}

/// Leases that end together, linked through the nodes of the allocator.
struct lease_chain {
  /// The newest lease of the chain.
  std::uint32_t head = 0xffffffffU;
  [[nodiscard]] bool empty() const noexcept { return head == 0xffffffffU; }
};

class offset_allocator {
 public:
  /// A region of `capacity_bytes` with at most `max_leases` (below 2^31) at a time. The meter, if any, counts every
  /// lease.
  offset_allocator(std::size_t capacity_bytes, std::size_t max_leases, tier_meter* meter = nullptr,
                   where at = where::current());

  /// The offset of a range of at least `bytes`, rounded up to a multiple of `lease_alignment`, whose former users come
  /// before what `user` comes after. The lease is added to `chain`, and `mark` is kept with it. Nothing where the
  /// region has no such room or all leases are in use. Zero bytes are a range of size zero at offset 0.
  [[nodiscard]] std::optional<std::size_t> allocate(std::size_t bytes, lease_chain& chain,
                                                    const stream_clock& user = {}, lease_mark mark = {});

  /// A lease with a chain of its own.
  struct chained_lease {
    /// Where the bytes begin, and the chain of that lease alone.
    std::size_t offset = 0;
    lease_chain chain;
  };
  /// A lease of at least `bytes` with a chain of its own; nothing where there is no room.
  [[nodiscard]] std::optional<chained_lease> allocate(std::size_t bytes);

  /// Ends every lease of the chain but those that are held. Its compute stream has used them up to `now`, the clock of
  /// that stream.
  void release(lease_chain& chain, const stream_clock& now = {}) noexcept;
  /// Ends every lease of the chain but those that are held. `used_by(offset, bytes)` is a clock of all that has used a
  /// lease; `now` is the clock of the chain's compute stream.
  void release(lease_chain& chain, function_ref<stream_clock(std::size_t, std::size_t)> used_by,
               const stream_clock& now) noexcept;

  /// Calls visit(offset, bytes) for every lease of the chain, or visit(offset, bytes, mark).
  template <class Visit>
  void each(const lease_chain& chain, Visit&& visit) const {
    for (std::uint32_t at = chain.head; at != none; at = nodes_[at].chained) {
      if constexpr (std::invocable<Visit&, std::size_t, std::size_t, lease_mark>)
        visit(nodes_[at].offset, nodes_[at].size, nodes_[at].mark);
      else
        visit(nodes_[at].offset, nodes_[at].size);
    }
  }
  /// Whether a lease of the chain has the byte at `offset` in it.
  [[nodiscard]] bool holds(const lease_chain& chain, std::size_t offset) const noexcept;
  /// Bytes of all leases of the chain.
  [[nodiscard]] std::size_t bytes_of(const lease_chain& chain) const noexcept;

  /// Moves the lease that has the byte at `offset` in it from one chain to another; false when `from` does not hold it.
  [[nodiscard]] bool transfer(std::size_t offset, lease_chain& from, lease_chain& to) noexcept;

  /// Moves every lease of `from` to `to`.
  void append(lease_chain& from, lease_chain& to) noexcept;

  /// A lease that is held once more, whoever ends its chain: it ends when the last who holds it lets go.
  using lease_number = std::uint32_t;
  /// Holds the lease that has the byte at `offset` in it, if any does. Linear in the number of ranges.
  [[nodiscard]] std::optional<lease_number> hold(std::size_t offset) noexcept;
  /// Lets go of it. The result has the lease where its chain has ended and nobody holds it any more: to be released.
  [[nodiscard]] lease_chain let_go(lease_number held) noexcept;
  /// Takes what is held out of a chain that ends.
  void leave_held(lease_chain& chain) noexcept;

  /// Ends every lease: a step reclaims with it what lost handles held. `used` is what has used the region.
  void clear(const stream_clock& used = {}) noexcept;

  /// Bytes in all, leased now, and the most that were at a time.
  [[nodiscard]] std::size_t capacity_bytes() const noexcept { return capacity_; }
  [[nodiscard]] std::size_t live_bytes() const noexcept { return live_; }
  [[nodiscard]] std::size_t peak_bytes() const noexcept { return peak_; }
  /// The highest end of any lease so far: what the region must have been at least.
  [[nodiscard]] std::size_t extent_bytes() const noexcept { return extent_; }
  /// Leases that have not ended. Linear in the number of ranges.
  [[nodiscard]] std::size_t lease_count() const noexcept;

 private:
  static constexpr std::uint32_t none = 0xffffffffU;
  static constexpr std::uint32_t ended = 0xfffffffeU;  // in `chained`: held by others, and its chain has ended
  // Node 0 closes both rings, that of all ranges and that of the free ones, so that no list has an end to test for.
  static constexpr std::uint32_t edge = 0;

  struct node {
    std::size_t offset = 0;
    std::size_t size = 0;
    stream_clock used_by;           // of a free range
    std::uint32_t previous = edge;  // in address order
    std::uint32_t next = edge;
    std::uint32_t previous_free = edge;  // of free ranges, in address order
    union {
      std::uint32_t next_free = edge;  // of a free range
      std::uint32_t held;              // of a lease: by how many beside its chain
    };
    std::uint32_t chained = none;  // a lease: the next of its chain; a spare node: the next spare, or edge
    bool leased = false;
    bool awaited = false;  // a free range that another stream than that of the compute may use
    lease_mark mark;       // of a lease: whose it is

    [[nodiscard]] bool has(std::size_t byte) const noexcept { return byte >= offset && byte - offset < size; }

    [[nodiscard]] bool free_for(const stream_clock& user) const noexcept {
      return used_by.place(stream_kind::compute) <= user.place(stream_kind::compute) &&
             (!awaited || user.covers(used_by));
    }
  };

  [[nodiscard]] static std::size_t nodes_for(std::size_t max_leases, where at);

  template <class Note>
  void release_with(lease_chain& chain, const Note& note, const stream_clock& now) noexcept;

  inline void recycle(std::uint32_t at) noexcept;

  // A new node takes the first `size` bytes of the free node `at`, which keeps the rest and its position in the free
  // list. Returns the edge where all nodes are in use.
  inline std::uint32_t take_front(std::uint32_t at, std::size_t size) noexcept;

  inline void unlink_free(std::uint32_t at) noexcept;

  // Makes the free node `at` larger, to `size` bytes, by what follows it and is free for `user` too.
  inline bool widen(std::uint32_t at, std::size_t size, const stream_clock& user) noexcept;

  // Removes a node that was merged into a neighbour from the address order.
  inline void unlink(std::uint32_t at) noexcept;

  // Whether two free ranges are one: both have had users, which come before `now`, or none. What nobody has used stays
  // apart, and so does what is awaited, so that neither is taken for the other.
  [[nodiscard]] static inline bool alike(node& one, node& other, const stream_clock& now) noexcept;
  // All users of `other` are users of `into`, which is like it.
  static inline void join(node& into, const node& other) noexcept;

  // A range that becomes free is merged with free neighbours like it, and has all their users.
  inline void free_node(std::uint32_t at, const stream_clock& now) noexcept;

  inline void link_free(std::uint32_t at) noexcept;

  std::vector<node> nodes_;  // those that were ever needed at a time; never more than were reserved
  std::size_t capacity_;
  tier_meter* meter_;
  std::size_t live_ = 0;
  std::size_t peak_ = 0;
  std::size_t extent_ = 0;
  std::uint32_t spare_ = edge;
};

/// The bytes of an arena that work of other streams uses, and until when. Has room for as many uses as were in flight
/// at a time.
class uses_in_flight {
 public:
  /// No bytes are used.
  [[nodiscard]] bool empty() const noexcept { return uses_.empty(); }

  /// Bytes from `first` on are used until what `until` says; one that was said of the same place without an end has it
  /// now. Forgets what `now` comes after.
  void add(std::size_t first, std::size_t bytes, const stream_clock& until, const stream_clock& now) {
    forget(now);
    for (use& one : uses_) {
      if (one.first != first || one.until != stream_clock::unknown()) continue;
      one = {first, first + bytes, until};
      return;
    }
    uses_.push_back({first, first + bytes, until});
  }
  void forget(const stream_clock& now) noexcept {
    std::erase_if(uses_, [&](const use& one) { return now.covers(one.until); });
  }

  /// Whether any of these bytes are used.
  [[nodiscard]] bool within(std::size_t first, std::size_t bytes) const noexcept {
    return std::any_of(uses_.begin(), uses_.end(), [&](const use& one) { return one.meets(first, bytes); });
  }
  /// `used` becomes what comes after all uses of these bytes.
  void join(std::size_t first, std::size_t bytes, stream_clock& used) const noexcept {
    for (const use& one : uses_)
      if (one.meets(first, bytes)) used.join(one.until);
  }
  /// Ends uses that were never begun; `used` becomes what comes after all others.
  void join_known(stream_clock& used) noexcept {
    std::erase_if(uses_, [](const use& one) { return one.until == stream_clock::unknown(); });
    for (const use& one : uses_) used.join(one.until);
  }

 private:
  struct use {
    std::size_t first, end;
    stream_clock until;

    [[nodiscard]] bool meets(std::size_t from, std::size_t bytes) const noexcept {
      return first < from + bytes && from < end;
    }
  };

  std::vector<use> uses_;
};

/// The ranges of a region whose leases are those of one stream, in its order, and what work of others still uses. An
/// arena gives them types, a symmetric heap gives them slots. A range goes to another stream when that comes after its
/// users.
class stream_leases {
 public:
  /// Of a region of `capacity_bytes`, with at most `max_leases` at a time. The meter, if any, counts every lease.
  stream_leases(std::size_t capacity_bytes, std::size_t max_leases, tier_meter* meter)
      : offsets_(capacity_bytes, max_leases, meter) {}

  /// From here on leases are the stream's whose clock this is. Until then they are those of a stream that waits for no
  /// other.
  void follow(const std::shared_ptr<stream_clock>& clock) noexcept { clock_ = clock; }

  /// The allocator, which knows the leases by their chains.
  [[nodiscard]] offset_allocator& offsets() noexcept { return offsets_; }
  [[nodiscard]] const offset_allocator& offsets() const noexcept { return offsets_; }

  /// The offset of a lease, as the allocator gives it.
  [[nodiscard]] std::optional<std::size_t> allocate(std::size_t bytes, lease_chain& chain, lease_mark mark = {}) {
    return offsets_.allocate(bytes, chain, *clock_, mark);
  }
  /// The offset of a lease for work of the stream `user` that begins after `ready`, an event of the leases' stream;
  /// `used_until` says where that work ends.
  [[nodiscard]] std::optional<std::size_t> allocate_for(stream_kind user, const stream_event& ready, std::size_t bytes,
                                                        lease_chain& chain, lease_mark mark = {}) {
    const auto offset = offsets_.allocate(bytes, chain, ready.clock().within(user), mark);
    if (offset && bytes > 0) uses_.add(*offset, bytes, stream_clock::unknown(), *clock_);
    return offset;
  }
  /// Work of another stream uses these bytes until `over`. Their lease may end before: nobody gets them who does not
  /// come after that.
  void used_until(const stream_event& over, std::size_t offset, std::size_t bytes) {
    uses_.add(offset, bytes, over.clock(), *clock_);
  }
  /// The host has waited for `over` itself: so what it queues from here on comes after it.
  void host_waited(const stream_event& over) noexcept { clock_->join(over.clock()); }

  /// Forgets uses that are over.
  void forget_uses() noexcept {
    if (!uses_.empty()) [[unlikely]]
      uses_.forget(*clock_);
  }
  /// Whether work of another stream uses the region; these bytes of it.
  [[nodiscard]] bool used_by_others() const noexcept { return !uses_.empty(); }
  [[nodiscard]] bool used_by_others(std::size_t offset, std::size_t bytes) const noexcept {
    return used_by_others() && uses_.within(offset, bytes);
  }

  /// Ends all leases of the chain, in the order of the leases' stream, but those that are held.
  void release(lease_chain& chain) noexcept {
    forget_uses();
    if (!used_by_others()) [[likely]]
      return offsets_.release(chain, *clock_);
    release_used(chain);
  }
  /// Ends every lease, and uses whose end nobody has said.
  void reclaim() noexcept;

 private:
  // Something is used by another stream.
  void release_used(lease_chain& chain) noexcept;

  offset_allocator offsets_;
  std::shared_ptr<stream_clock> clock_ = std::make_shared<stream_clock>(stream_kind::compute, 1);
  uses_in_flight uses_;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/device/offset_allocator.ipp"  // IWYU pragma: export
#endif
