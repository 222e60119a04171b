// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Free ranges by size and by address.
#pragma once

#include <string>

#include "belay/core/error.hpp"
#include "belay/device/offset_allocator.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL std::size_t offset_allocator::nodes_for(std::size_t max_leases, where at) {
  if (max_leases >= std::size_t{1} << 31) {
    throw usage_error(
        "an allocator for " + std::to_string(max_leases) + " leases at a time: it has room for less than 2^31", at);
  }
  return 2 * max_leases + 2;
}

BELAY_DECL offset_allocator::offset_allocator(std::size_t capacity_bytes, std::size_t max_leases, tier_meter* meter,
                                              where at)
    : capacity_(capacity_bytes), meter_(meter) {
  nodes_.reserve(nodes_for(max_leases, at));
  clear();
}

// Leaves of every lease and its end come before them and are inlined: calls between them cost more than they do.
inline void offset_allocator::recycle(std::uint32_t at) noexcept {
  nodes_[at].chained = spare_;
  spare_ = at;
}

inline void offset_allocator::unlink_free(std::uint32_t at) noexcept {
  node* const nodes = nodes_.data();
  const std::uint32_t before = nodes[at].previous_free;
  const std::uint32_t after = nodes[at].next_free;
  nodes[before].next_free = after;
  nodes[after].previous_free = before;
}

inline void offset_allocator::unlink(std::uint32_t at) noexcept {
  node* const nodes = nodes_.data();
  const std::uint32_t before = nodes[at].previous;
  const std::uint32_t after = nodes[at].next;
  nodes[before].next = after;
  nodes[after].previous = before;
  recycle(at);
}

inline void offset_allocator::link_free(std::uint32_t at) noexcept {
  node* const nodes = nodes_.data();
  std::uint32_t after = nodes[at].next;
  while (nodes[after].leased && after != edge) after = nodes[after].next;
  const std::uint32_t before = nodes[after].previous_free;
  nodes[at].next_free = after;
  nodes[at].previous_free = before;
  nodes[before].next_free = at;
  nodes[after].previous_free = at;
}

inline bool offset_allocator::alike(node& one, node& other, const stream_clock& now) noexcept {
  if (one.awaited) one.awaited = !now.covers(one.used_by);
  if (other.awaited) other.awaited = !now.covers(other.used_by);
  if (one.awaited || other.awaited) return false;
  return (one.used_by.place(stream_kind::compute) == 0) == (other.used_by.place(stream_kind::compute) == 0);
}

inline void offset_allocator::join(node& into, const node& other) noexcept {
  const std::uint64_t place = other.used_by.place(stream_kind::compute);
  if (into.used_by.place(stream_kind::compute) < place) into.used_by.set(stream_kind::compute, place);
}

inline void offset_allocator::free_node(std::uint32_t at, const stream_clock& now) noexcept {
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

template <class Note>
void offset_allocator::release_with(lease_chain& chain, const Note& note, const stream_clock& now) noexcept {
  std::uint32_t at = chain.head;
  if (at == none) return;
  chain.head = none;
  std::size_t bytes = 0;
  do {
    const std::uint32_t next = nodes_[at].chained;
    if (nodes_[at].held > 0) [[unlikely]] {
      nodes_[at].chained = ended;
    } else {
      bytes += nodes_[at].size;
      note(nodes_[at]);
      free_node(at, now);
    }
    at = next;
  } while (at != none);
  live_ -= bytes;
  if (meter_ != nullptr) meter_->remove(bytes);
}

inline std::uint32_t offset_allocator::take_front(std::uint32_t at, std::size_t size) noexcept {
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

inline bool offset_allocator::widen(std::uint32_t at, std::size_t size, const stream_clock& user) noexcept {
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

BELAY_DECL std::optional<std::size_t> offset_allocator::allocate(std::size_t bytes, lease_chain& chain,
                                                                 const stream_clock& user, lease_mark mark) {
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
  taken.held = 0;
  taken.chained = chain.head;
  chain.head = at;
  live_ += size;
  if (live_ > peak_) peak_ = live_;
  const std::size_t offset = taken.offset;
  if (offset + size > extent_) extent_ = offset + size;
  if (meter_ != nullptr) meter_->add(size);
  return offset;
}

BELAY_DECL auto offset_allocator::allocate(std::size_t bytes) -> std::optional<chained_lease> {
  chained_lease out;
  const auto offset = allocate(bytes, out.chain);
  if (!offset) return std::nullopt;
  out.offset = *offset;
  return out;
}

BELAY_DECL void offset_allocator::release(lease_chain& chain, const stream_clock& now) noexcept {
  const std::uint64_t place = now.place(stream_kind::compute);
  const auto used_by_compute = [&](node& freed) {
    freed.used_by.set(stream_kind::compute, place);
    freed.awaited = false;
  };
  release_with(chain, used_by_compute, now);
}

BELAY_DECL void offset_allocator::release(lease_chain& chain,
                                          function_ref<stream_clock(std::size_t, std::size_t)> used_by,
                                          const stream_clock& now) noexcept {
  const auto used_by_others = [&](node& freed) {
    freed.used_by = used_by(freed.offset, freed.size);
    freed.awaited = !now.covers(freed.used_by);
  };
  release_with(chain, used_by_others, now);
}

BELAY_DECL bool offset_allocator::holds(const lease_chain& chain, std::size_t offset) const noexcept {
  for (std::uint32_t at = chain.head; at != none; at = nodes_[at].chained)
    if (nodes_[at].has(offset)) return true;
  return false;
}

BELAY_DECL std::size_t offset_allocator::bytes_of(const lease_chain& chain) const noexcept {
  std::size_t bytes = 0;
  for (std::uint32_t at = chain.head; at != none; at = nodes_[at].chained) bytes += nodes_[at].size;
  return bytes;
}

BELAY_DECL bool offset_allocator::transfer(std::size_t offset, lease_chain& from, lease_chain& to) noexcept {
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

BELAY_DECL void offset_allocator::append(lease_chain& from, lease_chain& to) noexcept {
  std::uint32_t* end = &from.head;
  while (*end != none) end = &nodes_[*end].chained;
  *end = to.head;
  to.head = from.head;
  from.head = none;
}

BELAY_DECL auto offset_allocator::hold(std::size_t offset) noexcept -> std::optional<lease_number> {
  for (std::uint32_t at = nodes_[edge].next; at != edge; at = nodes_[at].next) {
    if (!nodes_[at].leased || !nodes_[at].has(offset)) continue;
    ++nodes_[at].held;
    return at;
  }
  return std::nullopt;
}

BELAY_DECL lease_chain offset_allocator::let_go(lease_number held) noexcept {
  lease_chain over;
  node& one = nodes_[held];
  if (--one.held > 0 || one.chained != ended) return over;
  one.chained = none;
  over.head = held;
  return over;
}

BELAY_DECL void offset_allocator::leave_held(lease_chain& chain) noexcept {
  for (std::uint32_t* link = &chain.head; *link != none;) {
    node& one = nodes_[*link];
    if (one.held == 0) {
      link = &one.chained;
    } else {
      *link = one.chained;
      one.chained = ended;
    }
  }
}

BELAY_DECL void offset_allocator::clear(const stream_clock& used) noexcept {
  if (meter_ != nullptr) meter_->remove(live_);
  live_ = 0;
  spare_ = edge;
  nodes_.resize(2);
  constexpr std::uint32_t whole = 1;
  const std::uint32_t first_free = capacity_ >= lease_alignment ? whole : edge;
  nodes_[edge] = {0, unlimited_bytes, {}, whole, whole, first_free, {first_free}, none, true, false, {}};
  nodes_[whole] = {
      0, capacity_ / lease_alignment * lease_alignment, used, edge, edge, edge, {edge}, none, false, true, {}};
  nodes_[whole].leased = first_free == edge;  // an empty region
}

BELAY_DECL std::size_t offset_allocator::lease_count() const noexcept {
  std::size_t count = 0;
  for (std::uint32_t at = nodes_[edge].next; at != edge; at = nodes_[at].next) count += nodes_[at].leased ? 1 : 0;
  return count;
}

BELAY_DECL void stream_leases::reclaim() noexcept {
  uses_.forget(*clock_);
  stream_clock used(stream_kind::compute, clock_->place(stream_kind::compute));
  uses_.join_known(used);
  offsets_.clear(used);
}

[[gnu::noinline]] BELAY_DECL void stream_leases::release_used(lease_chain& chain) noexcept {
  const stream_clock here(stream_kind::compute, clock_->place(stream_kind::compute));
  const auto used_by = [&](std::size_t offset, std::size_t bytes) {
    stream_clock used = here;
    uses_.join(offset, bytes, used);
    return used;
  };
  offsets_.release(chain, used_by, *clock_);
}

}  // namespace belay::inline BELAY_ABI
