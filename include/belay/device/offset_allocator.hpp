// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Hands out byte ranges of a region it never touches. The same sequence of requests gives the same offsets,
// on every rank and in the rehearsal that sizes the region, so there is no fragmentation to discover at run
// time: the extent that the rehearsal reached is the size of the arena. Address-ordered first fit with
// coalescing; all nodes exist from the start, so nothing is allocated later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/device/tier.hpp"

namespace belay::inline BELAY_ABI {

/// Alignment and granularity of every lease, in bytes: one cache line.
inline constexpr std::size_t lease_alignment = 64;

[[nodiscard]] constexpr std::size_t leased_size(std::size_t bytes) noexcept {
  return (bytes + lease_alignment - 1) / lease_alignment * lease_alignment;
}

/// Leases that end together, linked through the allocator's own nodes.
struct lease_chain {
  std::uint32_t head = 0xffffffffU;
  [[nodiscard]] bool empty() const noexcept { return head == 0xffffffffU; }
};

class offset_allocator {
 public:
  /// A region of `capacity_bytes`; at most `max_leases` at a time. The meter, if any, sees every lease.
  offset_allocator(std::size_t capacity_bytes, std::size_t max_leases, tier_meter* meter = nullptr)
      : nodes_(2 * max_leases + 2), capacity_(capacity_bytes), meter_(meter) {
    clear();
  }

  /// A range of at least `bytes` (a multiple of `lease_alignment` is taken), added to `chain`. Empty when
  /// the region has no room or all leases are in use. Zero bytes take a range of size zero at offset 0.
  [[nodiscard]] std::optional<std::size_t> allocate(std::size_t bytes, lease_chain& chain) {
    const std::size_t size = leased_size(bytes);
    if (size == 0) return 0;
    std::uint32_t at = first_free_;
    while (at != none && nodes_[at].size < size) at = nodes_[at].next_free;
    if (at == none) return std::nullopt;
    if (nodes_[at].size > size && !split(at, size)) return std::nullopt;
    unlink_free(at);
    node& taken = nodes_[at];
    taken.used = true;
    taken.chained = chain.head;
    chain.head = at;
    live_ += size;
    if (live_ > peak_) peak_ = live_;
    if (taken.offset + size > extent_) extent_ = taken.offset + size;
    ++leases_;
    if (meter_ != nullptr) meter_->add(size);
    return taken.offset;
  }

  /// One lease of its own: release it with the returned chain.
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
    chain.head = none;
    while (at != none) {
      const std::uint32_t next = nodes_[at].chained;
      free_node(at);
      at = next;
    }
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

  /// Ends every lease there is: what a step reclaims when handles were lost.
  void clear() noexcept {
    if (meter_ != nullptr) meter_->remove(live_);
    live_ = 0;
    leases_ = 0;
    spare_ = none;
    for (std::uint32_t i = static_cast<std::uint32_t>(nodes_.size()); i-- > 1;) recycle(i);
    nodes_[0] = node{};
    nodes_[0].size = capacity_ / lease_alignment * lease_alignment;
    first_free_ = nodes_[0].size > 0 ? 0 : none;
  }

  [[nodiscard]] std::size_t capacity_bytes() const noexcept { return capacity_; }
  [[nodiscard]] std::size_t live_bytes() const noexcept { return live_; }
  [[nodiscard]] std::size_t peak_bytes() const noexcept { return peak_; }
  /// The highest end of any lease so far: what the region must have been at least.
  [[nodiscard]] std::size_t extent_bytes() const noexcept { return extent_; }
  [[nodiscard]] std::size_t lease_count() const noexcept { return leases_; }

 private:
  static constexpr std::uint32_t none = 0xffffffffU;

  struct node {
    std::size_t offset = 0;
    std::size_t size = 0;
    std::uint32_t previous = none;  // in address order
    std::uint32_t next = none;
    std::uint32_t previous_free = none;  // free ranges only, in address order
    std::uint32_t next_free = none;
    std::uint32_t chained = none;  // leases only: the next of the same chain; spare nodes: the next spare
    bool used = false;
  };

  void recycle(std::uint32_t at) noexcept {
    nodes_[at] = node{};
    nodes_[at].chained = spare_;
    spare_ = at;
  }

  // The free node `at` keeps the first `size` bytes; a new free node takes the rest.
  bool split(std::uint32_t at, std::size_t size) noexcept {
    if (spare_ == none) return false;
    const std::uint32_t rest = spare_;
    spare_ = nodes_[rest].chained;
    node& head = nodes_[at];
    node& tail = nodes_[rest];
    tail = node{head.offset + size, head.size - size, at, head.next, at, head.next_free, none, false};
    if (head.next != none) nodes_[head.next].previous = rest;
    if (head.next_free != none) nodes_[head.next_free].previous_free = rest;
    head.next = rest;
    head.next_free = rest;
    head.size = size;
    return true;
  }

  void unlink_free(std::uint32_t at) noexcept {
    const node& gone = nodes_[at];
    if (gone.previous_free != none)
      nodes_[gone.previous_free].next_free = gone.next_free;
    else
      first_free_ = gone.next_free;
    if (gone.next_free != none) nodes_[gone.next_free].previous_free = gone.previous_free;
  }

  void free_node(std::uint32_t at) noexcept {
    live_ -= nodes_[at].size;
    --leases_;
    if (meter_ != nullptr) meter_->remove(nodes_[at].size);
    nodes_[at].used = false;
    nodes_[at].chained = none;
    link_free(at);
    merge_with_next(at);
    const std::uint32_t before = nodes_[at].previous;
    if (before != none && !nodes_[before].used) merge_with_next(before);
  }

  void link_free(std::uint32_t at) noexcept {
    std::uint32_t follower = nodes_[at].next;
    while (follower != none && nodes_[follower].used) follower = nodes_[follower].next;
    std::uint32_t leader = none;
    if (follower != none) {
      leader = nodes_[follower].previous_free;
      nodes_[follower].previous_free = at;
    } else {
      leader = nodes_[at].previous;
      while (leader != none && nodes_[leader].used) leader = nodes_[leader].previous;
    }
    nodes_[at].next_free = follower;
    nodes_[at].previous_free = leader;
    if (leader != none)
      nodes_[leader].next_free = at;
    else
      first_free_ = at;
  }

  // `at` is free; if its right neighbour is free too, they become one.
  void merge_with_next(std::uint32_t at) noexcept {
    const std::uint32_t right = nodes_[at].next;
    if (right == none || nodes_[right].used) return;
    unlink_free(right);
    nodes_[at].size += nodes_[right].size;
    nodes_[at].next = nodes_[right].next;
    if (nodes_[right].next != none) nodes_[nodes_[right].next].previous = at;
    recycle(right);
  }

  std::vector<node> nodes_;
  std::size_t capacity_;
  tier_meter* meter_;
  std::size_t live_ = 0;
  std::size_t peak_ = 0;
  std::size_t extent_ = 0;
  std::size_t leases_ = 0;
  std::uint32_t first_free_ = none;
  std::uint32_t spare_ = none;
};

}  // namespace belay::inline BELAY_ABI
