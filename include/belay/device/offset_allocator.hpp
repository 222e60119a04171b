// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Hands out byte ranges of a region that it never touches. The same sequence of requests gives the same offsets, on
// every rank and in the rehearsal that sizes the region: the extent that the rehearsal reached is the size of the
// arena, and no fragmentation is discovered at run time. It is an address-ordered first-fit allocator with coalescing.
// All nodes exist from the start, so it allocates nothing later.
//
//   belay::offset_allocator offsets(std::size_t{1} << 20, 64);
//   belay::lease_chain chain;
//   const std::optional<std::size_t> at = offsets.allocate(4096, chain);  // nothing where the region is full
//   offsets.release(chain);                                               // ends all leases of the chain
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
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
  std::uint32_t head = 0xffffffffU;
  [[nodiscard]] bool empty() const noexcept { return head == 0xffffffffU; }
};

class offset_allocator {
 public:
  /// A region of `capacity_bytes` with at most `max_leases` (below 2^31) at a time. The meter, if any, counts every
  /// lease.
  offset_allocator(std::size_t capacity_bytes, std::size_t max_leases, tier_meter* meter = nullptr,
                   where at = where::current())
      : nodes_(nodes_for(max_leases, at)), capacity_(capacity_bytes), meter_(meter) {
    clear();
  }

  /// The offset of a range of at least `bytes`, rounded up to a multiple of `lease_alignment`. The lease is added to
  /// `chain`. Nothing where the region has no room or all leases are in use. Zero bytes are a range of size zero at
  /// offset 0.
  [[nodiscard]] std::optional<std::size_t> allocate(std::size_t bytes, lease_chain& chain) {
    const std::size_t size = leased_size(bytes);
    if (size == 0) return 0;
    node* const nodes = nodes_.data();
    std::uint32_t at = nodes[edge].next_free;
    while (nodes[at].size < size) at = nodes[at].next_free;  // ends: no request is larger than the edge
    if (at == edge) return std::nullopt;
    if (nodes[at].size == size) {
      unlink_free(at);
    } else {
      at = take_front(at, size);
      if (at == edge) return std::nullopt;
    }
    node& taken = nodes[at];
    taken.used = true;
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
  struct range {
    std::size_t offset = 0;
    lease_chain chain;
  };
  [[nodiscard]] std::optional<range> allocate(std::size_t bytes) {
    range out;
    const auto offset = allocate(bytes, out.chain);
    if (!offset) return std::nullopt;
    out.offset = *offset;
    return out;
  }

  /// Ends every lease of the chain.
  void release(lease_chain& chain) noexcept {
    std::uint32_t at = chain.head;
    if (at == none) return;
    chain.head = none;
    std::size_t bytes = 0;
    do {
      const std::uint32_t next = nodes_[at].chained;
      bytes += nodes_[at].size;
      free_node(at);
      at = next;
    } while (at != none);
    live_ -= bytes;
    if (meter_ != nullptr) meter_->remove(bytes);
  }

  /// Calls visit(offset, bytes) for every lease of the chain.
  void each(const lease_chain& chain, auto&& visit) const {
    for (std::uint32_t at = chain.head; at != none; at = nodes_[at].chained) visit(nodes_[at].offset, nodes_[at].size);
  }
  /// Bytes of all leases of the chain.
  [[nodiscard]] std::size_t bytes_of(const lease_chain& chain) const noexcept {
    std::size_t bytes = 0;
    for (std::uint32_t at = chain.head; at != none; at = nodes_[at].chained) bytes += nodes_[at].size;
    return bytes;
  }

  /// Moves the lease at `offset` from one chain to another; false when `from` does not hold it.
  [[nodiscard]] bool transfer(std::size_t offset, lease_chain& from, lease_chain& to) noexcept {
    for (std::uint32_t* link = &from.head; *link != none; link = &nodes_[*link].chained) {
      if (nodes_[*link].offset != offset) continue;
      const std::uint32_t moved = *link;
      *link = nodes_[moved].chained;
      nodes_[moved].chained = to.head;
      to.head = moved;
      return true;
    }
    return false;
  }

  /// Ends every lease: a step reclaims with it what lost handles held.
  void clear() noexcept {
    if (meter_ != nullptr) meter_->remove(live_);
    live_ = 0;
    spare_ = edge;
    for (std::uint32_t i = static_cast<std::uint32_t>(nodes_.size()); i-- > 2;) recycle(i);
    constexpr std::uint32_t whole = 1;
    const std::uint32_t first_free = capacity_ >= lease_alignment ? whole : edge;
    nodes_[edge] = {0, unlimited_bytes, whole, whole, first_free, first_free, none, true};
    nodes_[whole] = {0, capacity_ / lease_alignment * lease_alignment, edge, edge, edge, edge, none, false};
    nodes_[whole].used = first_free == edge;  // an empty region
  }

  [[nodiscard]] std::size_t capacity_bytes() const noexcept { return capacity_; }
  [[nodiscard]] std::size_t live_bytes() const noexcept { return live_; }
  [[nodiscard]] std::size_t peak_bytes() const noexcept { return peak_; }
  /// The highest end of any lease so far: what the region must have been at least.
  [[nodiscard]] std::size_t extent_bytes() const noexcept { return extent_; }
  /// Leases that have not ended. Linear in the number of ranges.
  [[nodiscard]] std::size_t lease_count() const noexcept {
    std::size_t count = 0;
    for (std::uint32_t at = nodes_[edge].next; at != edge; at = nodes_[at].next) count += nodes_[at].used ? 1 : 0;
    return count;
  }

 private:
  static constexpr std::uint32_t none = 0xffffffffU;
  // Node 0 closes both rings, that of all ranges and that of the free ones, so that no list has an end to test for.
  static constexpr std::uint32_t edge = 0;

  struct node {
    std::size_t offset = 0;
    std::size_t size = 0;
    std::uint32_t previous = edge;  // in address order
    std::uint32_t next = edge;
    std::uint32_t previous_free = edge;  // free ranges only, in address order
    std::uint32_t next_free = edge;
    std::uint32_t chained = none;  // a lease: the next of its chain; a spare node: the next spare, or edge
    bool used = false;
  };

  [[nodiscard]] static std::size_t nodes_for(std::size_t max_leases, where at) {
    if (max_leases >= std::size_t{1} << 31) {
      throw usage_error(
          "an allocator for " + std::to_string(max_leases) + " leases at a time: it has room for less than 2^31", at);
    }
    return 2 * max_leases + 2;
  }

  void recycle(std::uint32_t at) noexcept {
    nodes_[at].chained = spare_;
    spare_ = at;
  }

  // A new node takes the first `size` bytes of the free node `at`, which keeps the rest and its position in the free
  // list. Returns the edge where all nodes are in use.
  std::uint32_t take_front(std::uint32_t at, std::size_t size) noexcept {
    node* const nodes = nodes_.data();
    const std::uint32_t taken = spare_;
    if (taken == edge) return edge;
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

  // Removes a node that was merged into a neighbour from the address order.
  void unlink(std::uint32_t at) noexcept {
    node* const nodes = nodes_.data();
    const std::uint32_t before = nodes[at].previous;
    const std::uint32_t after = nodes[at].next;
    nodes[before].next = after;
    nodes[after].previous = before;
    recycle(at);
  }

  // A range that becomes free is merged with its free neighbours. Only one between two leases enters the free list.
  void free_node(std::uint32_t at) noexcept {
    node* const nodes = nodes_.data();
    node& freed = nodes[at];
    const std::size_t size = freed.size;
    const std::uint32_t before = freed.previous;
    const std::uint32_t after = freed.next;
    if (!nodes[after].used) {
      nodes[after].offset = freed.offset;
      nodes[after].size += size;
      unlink(at);
      if (!nodes[before].used) {
        nodes[after].offset = nodes[before].offset;
        nodes[after].size += nodes[before].size;
        unlink_free(before);
        unlink(before);
      }
    } else if (!nodes[before].used) {
      nodes[before].size += size;
      unlink(at);
    } else {
      freed.used = false;
      link_free(at);
    }
  }

  void link_free(std::uint32_t at) noexcept {
    node* const nodes = nodes_.data();
    std::uint32_t after = nodes[at].next;
    while (nodes[after].used && after != edge) after = nodes[after].next;
    const std::uint32_t before = nodes[after].previous_free;
    nodes[at].next_free = after;
    nodes[at].previous_free = before;
    nodes[before].next_free = at;
    nodes[after].previous_free = at;
  }

  std::vector<node> nodes_;
  std::size_t capacity_;
  tier_meter* meter_;
  std::size_t live_ = 0;
  std::size_t peak_ = 0;
  std::size_t extent_ = 0;
  std::uint32_t spare_ = edge;
};

}  // namespace belay::inline BELAY_ABI
