// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Hands out byte ranges of a region that it never touches. The same sequence of requests gives the same offsets, on
// every rank and in the rehearsal that sizes the region: the extent that the rehearsal reached is the size of the
// arena, and no fragmentation is discovered at run time. It is an address-ordered first-fit allocator with coalescing.
// A free range remembers what has used it, and is given only to what comes after that (device/stream_clock.hpp). All
// nodes exist from the start, so it allocates nothing later.
//
//   belay::offset_allocator offsets(std::size_t{1} << 20, 64);
//   belay::lease_chain chain;
//   const std::optional<std::size_t> at = offsets.allocate(4096, chain);  // nothing where the region is full
//   offsets.release(chain);                                               // ends all leases of the chain
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/poison.hpp"
#include "belay/device/stream_clock.hpp"
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
                   where at = where::current())
      : capacity_(capacity_bytes), meter_(meter) {
    nodes_.reserve(nodes_for(max_leases, at));
    clear();
  }

  /// The offset of a range of at least `bytes`, rounded up to a multiple of `lease_alignment`, whose former users come
  /// before what `user` comes after. The lease is added to `chain`, and `mark` is kept with it. Nothing where the
  /// region has no such room or all leases are in use. Zero bytes are a range of size zero at offset 0.
  [[nodiscard]] std::optional<std::size_t> allocate(std::size_t bytes, lease_chain& chain,
                                                    const stream_clock& user = {}, lease_mark mark = {}) {
    const std::size_t size = leased_size(bytes);
    if (size == 0) return 0;
    node* const nodes = nodes_.data();
    std::uint32_t at = nodes[edge].next_free;
    // Ends: no request is larger than the edge, which nobody has used.
    while (!nodes[at].free_for(user) || (nodes[at].size < size && !widen(at, size, user))) at = nodes[at].next_free;
    if (at == edge) return std::nullopt;
    if (nodes[at].size == size) {
      unlink_free(at);
    } else {
      at = take_front(at, size);
      if (at == edge) return std::nullopt;
    }
    node& taken = nodes[at];
    taken.leased = true;
    taken.mark = mark;
    taken.chained = chain.head;
    chain.head = at;
    live_ += size;
    if (live_ > peak_) peak_ = live_;
    const std::size_t offset = taken.offset;
    if (offset + size > extent_) extent_ = offset + size;
    if (meter_ != nullptr) meter_->add(size);
    return offset;
  }

  /// A lease with a chain of its own.
  struct chained_lease {
    /// Where the bytes begin, and the chain of that lease alone.
    std::size_t offset = 0;
    lease_chain chain;
  };
  /// A lease of at least `bytes` with a chain of its own; nothing where there is no room.
  [[nodiscard]] std::optional<chained_lease> allocate(std::size_t bytes) {
    chained_lease out;
    const auto offset = allocate(bytes, out.chain);
    if (!offset) return std::nullopt;
    out.offset = *offset;
    return out;
  }

  /// Ends every lease of the chain, which its compute stream has used up to `now`, the clock of that stream.
  void release(lease_chain& chain, const stream_clock& now = {}) noexcept {
    const std::uint64_t place = now.place(stream_kind::compute);
    const auto used_by_compute = [&](node& freed) {
      freed.used_by.set(stream_kind::compute, place);
      freed.awaited = false;
    };
    release_with(chain, used_by_compute, now);
  }
  /// Ends every lease of the chain. `used_by(offset, bytes)` is a clock of all that has used a lease; `now` is the
  /// clock of the chain's compute stream.
  template <std::invocable<std::size_t, std::size_t> UsedBy>
  void release(lease_chain& chain, const UsedBy& used_by, const stream_clock& now) noexcept {
    const auto used_by_others = [&](node& freed) {
      freed.used_by = used_by(freed.offset, freed.size);
      freed.awaited = !now.covers(freed.used_by);
    };
    release_with(chain, used_by_others, now);
  }

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
  [[nodiscard]] bool holds(const lease_chain& chain, std::size_t offset) const noexcept {
    for (std::uint32_t at = chain.head; at != none; at = nodes_[at].chained)
      if (nodes_[at].has(offset)) return true;
    return false;
  }
  /// Bytes of all leases of the chain.
  [[nodiscard]] std::size_t bytes_of(const lease_chain& chain) const noexcept {
    std::size_t bytes = 0;
    for (std::uint32_t at = chain.head; at != none; at = nodes_[at].chained) bytes += nodes_[at].size;
    return bytes;
  }

  /// Moves the lease that has the byte at `offset` in it from one chain to another; false when `from` does not hold it.
  [[nodiscard]] bool transfer(std::size_t offset, lease_chain& from, lease_chain& to) noexcept {
    for (std::uint32_t* link = &from.head; *link != none; link = &nodes_[*link].chained) {
      if (!nodes_[*link].has(offset)) continue;
      const std::uint32_t moved = *link;
      *link = nodes_[moved].chained;
      nodes_[moved].chained = to.head;
      to.head = moved;
      return true;
    }
    return false;
  }

  /// Moves every lease of `from` to `to`.
  void append(lease_chain& from, lease_chain& to) noexcept {
    std::uint32_t* end = &from.head;
    while (*end != none) end = &nodes_[*end].chained;
    *end = to.head;
    to.head = from.head;
    from.head = none;
  }

  /// Ends every lease: a step reclaims with it what lost handles held. `used` is what has used the region.
  void clear(const stream_clock& used = {}) noexcept {
    if (meter_ != nullptr) meter_->remove(live_);
    live_ = 0;
    spare_ = edge;
    nodes_.resize(2);
    constexpr std::uint32_t whole = 1;
    const std::uint32_t first_free = capacity_ >= lease_alignment ? whole : edge;
    nodes_[edge] = {0, unlimited_bytes, {}, whole, whole, first_free, first_free, none, true, false, {}};
    nodes_[whole] = {0, capacity_ / lease_alignment * lease_alignment, used, edge, edge, edge, edge, none, false, true,
                     {}};
    nodes_[whole].leased = first_free == edge;  // an empty region
  }

  /// Bytes in all, leased now, and the most that were at a time.
  [[nodiscard]] std::size_t capacity_bytes() const noexcept { return capacity_; }
  [[nodiscard]] std::size_t live_bytes() const noexcept { return live_; }
  [[nodiscard]] std::size_t peak_bytes() const noexcept { return peak_; }
  /// The highest end of any lease so far: what the region must have been at least.
  [[nodiscard]] std::size_t extent_bytes() const noexcept { return extent_; }
  /// Leases that have not ended. Linear in the number of ranges.
  [[nodiscard]] std::size_t lease_count() const noexcept {
    std::size_t count = 0;
    for (std::uint32_t at = nodes_[edge].next; at != edge; at = nodes_[at].next) count += nodes_[at].leased ? 1 : 0;
    return count;
  }

 private:
  static constexpr std::uint32_t none = 0xffffffffU;
  // Node 0 closes both rings, that of all ranges and that of the free ones, so that no list has an end to test for.
  static constexpr std::uint32_t edge = 0;

  struct node {
    std::size_t offset = 0;
    std::size_t size = 0;
    stream_clock used_by;           // of a free range
    std::uint32_t previous = edge;  // in address order
    std::uint32_t next = edge;
    std::uint32_t previous_free = edge;  // free ranges only, in address order
    std::uint32_t next_free = edge;
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

  [[nodiscard]] static std::size_t nodes_for(std::size_t max_leases, where at) {
    if (max_leases >= std::size_t{1} << 31) {
      throw usage_error(
          "an allocator for " + std::to_string(max_leases) + " leases at a time: it has room for less than 2^31", at);
    }
    return 2 * max_leases + 2;
  }

  template <class Note>
  void release_with(lease_chain& chain, const Note& note, const stream_clock& now) noexcept {
    std::uint32_t at = chain.head;
    if (at == none) return;
    chain.head = none;
    std::size_t bytes = 0;
    do {
      const std::uint32_t next = nodes_[at].chained;
      bytes += nodes_[at].size;
      note(nodes_[at]);
      free_node(at, now);
      at = next;
    } while (at != none);
    live_ -= bytes;
    if (meter_ != nullptr) meter_->remove(bytes);
  }

  void recycle(std::uint32_t at) noexcept {
    nodes_[at].chained = spare_;
    spare_ = at;
  }

  // A new node takes the first `size` bytes of the free node `at`, which keeps the rest and its position in the free
  // list. Returns the edge where all nodes are in use.
  std::uint32_t take_front(std::uint32_t at, std::size_t size) noexcept {
    if (spare_ == edge) [[unlikely]] {
      if (nodes_.size() == nodes_.capacity()) return edge;
      nodes_.emplace_back().chained = edge;  // within what was reserved
      spare_ = static_cast<std::uint32_t>(nodes_.size() - 1);
    }
    node* const nodes = nodes_.data();
    const std::uint32_t taken = spare_;
    node& rest = nodes[at];
    node& front = nodes[taken];
    const std::uint32_t before = rest.previous;
    spare_ = front.chained;
    front.offset = rest.offset;
    front.size = size;
    front.previous = before;
    front.next = at;
    nodes[before].next = taken;
    rest.previous = taken;
    rest.offset += size;
    rest.size -= size;
    return taken;
  }

  void unlink_free(std::uint32_t at) noexcept {
    node* const nodes = nodes_.data();
    const std::uint32_t before = nodes[at].previous_free;
    const std::uint32_t after = nodes[at].next_free;
    nodes[before].next_free = after;
    nodes[after].previous_free = before;
  }

  // Makes the free node `at` larger, to `size` bytes, by what follows it and is free for `user` too.
  bool widen(std::uint32_t at, std::size_t size, const stream_clock& user) noexcept {
    node* const nodes = nodes_.data();
    std::size_t have = nodes[at].size;
    for (std::uint32_t next = nodes[at].next; have < size; next = nodes[next].next) {
      if (nodes[next].leased || !nodes[next].free_for(user)) return false;
      have += nodes[next].size;
    }
    while (nodes[at].size < size) {
      const std::uint32_t next = nodes[at].next;
      const std::size_t lacks = size - nodes[at].size;
      if (nodes[next].size > lacks) {
        nodes[at].size = size;
        nodes[next].offset += lacks;
        nodes[next].size -= lacks;
      } else {
        nodes[at].size += nodes[next].size;
        unlink_free(next);
        unlink(next);
      }
    }
    return true;
  }

  // Removes a node that was merged into a neighbour from the address order.
  void unlink(std::uint32_t at) noexcept {
    node* const nodes = nodes_.data();
    const std::uint32_t before = nodes[at].previous;
    const std::uint32_t after = nodes[at].next;
    nodes[before].next = after;
    nodes[after].previous = before;
    recycle(at);
  }

  // Whether two free ranges are one: both have had users, which come before `now`, or none. What nobody has used stays
  // apart, and so does what is awaited, so that neither is taken for the other.
  [[nodiscard]] static bool alike(node& one, node& other, const stream_clock& now) noexcept {
    if (one.awaited) one.awaited = !now.covers(one.used_by);
    if (other.awaited) other.awaited = !now.covers(other.used_by);
    if (one.awaited || other.awaited) return false;
    return (one.used_by.place(stream_kind::compute) == 0) == (other.used_by.place(stream_kind::compute) == 0);
  }
  // All users of `other` are users of `into`, which is like it.
  static void join(node& into, const node& other) noexcept {
    const std::uint64_t place = other.used_by.place(stream_kind::compute);
    if (into.used_by.place(stream_kind::compute) < place) into.used_by.set(stream_kind::compute, place);
  }

  // A range that becomes free is merged with free neighbours like it, and has all their users.
  void free_node(std::uint32_t at, const stream_clock& now) noexcept {
    node* const nodes = nodes_.data();
    node& freed = nodes[at];
    const std::size_t size = freed.size;
    const std::uint32_t before = freed.previous;
    const std::uint32_t after = freed.next;
    const bool joins_before = !nodes[before].leased && alike(nodes[before], freed, now);
    if (!nodes[after].leased && alike(nodes[after], freed, now)) {
      nodes[after].offset = freed.offset;
      nodes[after].size += size;
      join(nodes[after], freed);
      unlink(at);
      if (joins_before) {
        nodes[after].offset = nodes[before].offset;
        nodes[after].size += nodes[before].size;
        join(nodes[after], nodes[before]);
        unlink_free(before);
        unlink(before);
      }
    } else if (joins_before) {
      nodes[before].size += size;
      join(nodes[before], freed);
      unlink(at);
    } else {
      freed.leased = false;
      link_free(at);
    }
  }

  void link_free(std::uint32_t at) noexcept {
    node* const nodes = nodes_.data();
    std::uint32_t after = nodes[at].next;
    while (nodes[after].leased && after != edge) after = nodes[after].next;
    const std::uint32_t before = nodes[after].previous_free;
    nodes[at].next_free = after;
    nodes[at].previous_free = before;
    nodes[before].next_free = at;
    nodes[after].previous_free = at;
  }

  std::vector<node> nodes_;  // those that were ever needed at a time; never more than were reserved
  std::size_t capacity_;
  tier_meter* meter_;
  std::size_t live_ = 0;
  std::size_t peak_ = 0;
  std::size_t extent_ = 0;
  std::uint32_t spare_ = edge;
};

}  // namespace belay::inline BELAY_ABI
