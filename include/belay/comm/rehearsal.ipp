// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Groups and ranks of a rehearsal, and what it notes of their collectives.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "belay/comm/rehearsal.hpp"
#include "belay/core/checked_size.hpp"

namespace belay::inline BELAY_ABI {
namespace rehearsal {

// The bytes that a rank gives its peers. Of divided buffers the parts are taken for equal ones: nobody may have written
// the counts in a rehearsal. Exchanges between pairs are not collectives.
BELAY_DECL std::size_t given_by(const op_call& call, std::size_t ranks) noexcept {
  const auto parts = [ranks](std::size_t each) { return (checked_size(each).rounded_up(16) * ranks).saturated(); };
  const std::size_t share = call.in_bytes() / ranks + (call.in_bytes() % ranks == 0 ? 0 : 1);
  switch (call.what()) {
    case operation::all_reduce:
    case operation::all_to_all:
    case operation::reduce_scatter_v:
    case operation::all_to_all_v: return parts(share);
    case operation::reduce_scatter:
    case operation::scatter: return parts(call.out_bytes());
    case operation::all_gather_v: return share;
    case operation::all_gather:
    case operation::gather:
    case operation::broadcast:
    case operation::reduce: return call.in_bytes();
    case operation::none:
    case operation::barrier:
    case operation::exchange:
    case operation::make_symmetric: return 0;
  }
  return 0;
}

BELAY_DECL bool call_sizes::alike_groups::has(std::span<const int> ranks_there) const {
  if (of_world() || ranks_there.empty()) return false;
  const std::vector<int>& mine =
      along ? ranks_along(shape, coordinate_of(shape, ranks_there.front()), *along) : members;
  return std::equal(mine.begin(), mine.end(), ranks_there.begin(), ranks_there.end());
}

BELAY_DECL std::size_t call_sizes::entry_of(const alike_groups& which) {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const alike_groups& each) { return each.made_as(which); });
  const auto entry = static_cast<std::size_t>(found - entries_.begin());
  if (found == entries_.end()) {
    entries_.push_back(which);
    entries_.back().bytes = 0;
  }
  return entry;
}

BELAY_DECL std::size_t call_sizes::of_world() const noexcept {
  std::size_t most = 0;
  for (const alike_groups& each : entries_)
    if (each.of_world()) most = greater_of(most, each.bytes);
  return most;
}

BELAY_DECL std::size_t call_sizes::of(std::span<const int> members) const {
  std::size_t most = 0;
  for (const alike_groups& each : entries_)
    if (each.has(members)) most = greater_of(most, each.bytes);
  return most;
}

BELAY_DECL std::size_t call_sizes::largest_reduced() const noexcept {
  std::size_t most = 0;
  for (const alike_groups& each : entries_) most = greater_of(most, each.reduced);
  return most;
}

BELAY_DECL int group::rank() const {
  if (asked_ != nullptr && size() > 1) {
    if (along_)
      asked_->ask_place(shape_, *along_);
    else
      asked_->ask_number();
  }
  return rank_;
}

BELAY_DECL std::span<const int> group::members() const {
  if (asked_ != nullptr && along_) asked_->ask_number();
  return {members_.data(), members_.size()};
}

BELAY_DECL auto group::started(operation what, const start_order& how) const noexcept -> pending {
  note(what, how.given_bytes);
  if (clock_ == nullptr) return pending(nullptr, 0, what, how.at);
  clock_->join(how.event.clock());
  return pending(nullptr, 0, what, how.at, clock_->mark(stream_kind::communication));
}

BELAY_DECL void group::note(operation what, std::size_t bytes) const noexcept {
  const bool adds = what == operation::all_reduce || what == operation::reduce || what == operation::reduce_scatter ||
                    what == operation::reduce_scatter_v;
  if (sizes_ != nullptr && size() > 1) sizes_->note(entry_, bytes, adds ? bytes : 0);
}

BELAY_DECL void group::note(const op_call& call) const noexcept { note(call.what(), given_by(call, members_.size())); }

BELAY_DECL rank::rank(int number, int size, const group_traits& promises, where at)
    : number_(number), size_(size), promises_(promises) {
  promises_.rehearsed = true;
  promises_.on_device = promises_.device_memory_alone = false;  // its memory is addresses
  if (size < 1 || number < 0 || number >= size) {
    throw usage_error("rank " + std::to_string(number) + " of a world of " + std::to_string(size), at);
  }
  for (int peer = 0; peer < size; ++peer) all_ranks_.push_back(peer);
}

BELAY_DECL int rank::number() const noexcept {
  asked_->ask_number();
  return number_;
}

BELAY_DECL auto rank::group_along(std::span<const int> members, const axes& shape, axis which, where at) const
    -> rehearsal::group {
  rehearsal::group made = made_of(members, at);
  made.shape_ = shape;
  made.along_ = which;
  return asking(std::move(made), {.shape = shape, .along = which, .ranks = static_cast<int>(members.size())});
}

BELAY_DECL auto rank::group(std::span<const int> members, where at) const -> rehearsal::group {
  return asking(made_of(members, at), {.members = std::vector<int>(members.begin(), members.end()),
                                       .ranks = static_cast<int>(members.size())});
}

BELAY_DECL auto rank::made_of(std::span<const int> members, where at) const -> rehearsal::group {
  std::size_t place = 0;
  while (place < members.size() && members[place] != number_) ++place;
  if (place == members.size()) {
    throw usage_error("rank " + std::to_string(number_) + " makes a group that it is not in", at);
  }
  return {std::vector<int>(members.data(), members.data() + members.size()), static_cast<int>(place), promises_};
}

BELAY_DECL auto rank::asking(rehearsal::group made, const call_sizes::alike_groups& which) const -> rehearsal::group {
  made.asked_ = asked_;
  made.clock_ = clock_;
  made.sizes_ = sizes_;
  made.entry_ = sizes_->entry_of(which);
  return made;
}

}  // namespace rehearsal
}  // namespace belay::inline BELAY_ABI
