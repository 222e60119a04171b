// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Groups and ranks of a rehearsal.
#pragma once

#include "belay/comm/rehearsal.hpp"

namespace belay::inline BELAY_ABI {
namespace rehearsal {

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
  if (clock_ == nullptr) return pending(nullptr, 0, what, how.at);
  clock_->join(how.event.clock());
  return pending(nullptr, 0, what, how.at, clock_->mark(stream_kind::communication));
}

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
  rehearsal::group made = group(members, at);
  made.shape_ = shape;
  made.along_ = which;
  return made;
}

BELAY_DECL auto rank::group(std::span<const int> members, where at) const -> rehearsal::group {
  std::size_t place = 0;
  while (place < members.size() && members[place] != number_) ++place;
  if (place == members.size()) {
    throw usage_error("rank " + std::to_string(number_) + " makes a group that it is not in", at);
  }
  return asking(
      {std::vector<int>(members.data(), members.data() + members.size()), static_cast<int>(place), promises_});
}

BELAY_DECL auto rank::asking(rehearsal::group made) const noexcept -> rehearsal::group {
  made.asked_ = asked_;
  made.clock_ = clock_;
  return made;
}

}  // namespace rehearsal
}  // namespace belay::inline BELAY_ABI
