// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How transfers begin, go on and end.
#pragma once

#include "belay/core/bounds.hpp"
#include "belay/device/tier_file/transfer.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL file_transfer& file_transfer::operator=(file_transfer&& other) noexcept {
  if (this == &other) return *this;
  settle();
  take(other);
  return *this;
}

BELAY_DECL void file_transfer::wait(where at) {
  settle();
  if (fault_ == tier_file_fault::none) return;
  throw tier_file_error(*directory_, {call_.operation, fault_, code_, call_.offset, call_.bytes, done_, {}}, at);
}

BELAY_DECL auto file_transfers::start(tier_file_operation operation, std::uint64_t offset, std::byte* address,
                                      std::size_t bytes) -> file_transfer {
  return {*this, directory_, {operation, descriptor_, address, bytes, offset}};
}

BELAY_DECL transfer_call file_transfers::next_call(std::size_t index) const noexcept {
  constexpr std::size_t most = std::size_t{1} << 30;  // Linux moves less than 2 GiB a call
  const progress& it = slots_[index];
  transfer_call call = it.transfer->call_;
  call.address += it.done;
  call.offset += it.done;
  call.bytes = lesser_of(call.bytes - it.done, most);
  return call;
}

BELAY_DECL bool file_transfers::finish_call(std::size_t index, std::int64_t result) noexcept {
  if (result == -EINTR || result == -EAGAIN || result == -ECANCELED) return true;  // nothing was said about the file
  if (result < 0) return finish(index, fault_of(static_cast<int>(-result)), static_cast<int>(-result));
  progress& it = slots_[index];
  const std::size_t rest = it.transfer->call_.bytes - it.done;
  const std::size_t moved = lesser_of(static_cast<std::size_t>(result), rest);
  // A direct call begins at a whole block: what was moved of one is moved again.
  const std::size_t kept = moved == rest ? moved : moved - moved % granularity_;
  it.done += kept;
  if (it.done == it.transfer->call_.bytes) return finish(index, tier_file_fault::none, 0);
  if (kept != 0) return true;
  it.done += moved;
  const bool reads = it.transfer->call_.operation == tier_file_operation::read;
  return finish(index, reads ? tier_file_fault::truncated : tier_file_fault::stalled, 0);
}

BELAY_DECL bool file_transfers::finish(std::size_t index, tier_file_fault fault, int code) noexcept {
  const progress it = std::exchange(slots_[index], progress{});
  free_.push_back(index);
  it.transfer->fault_ = fault;
  it.transfer->code_ = code;
  it.transfer->done_ = it.done;
  it.transfer->under_way_.store(false, std::memory_order_release);  // from here on the handle may be gone
  changed_.notify_all();
  return false;
}

BELAY_DECL void file_transfers::drain() noexcept {
  guard lock(mutex_);
  while (free_.size() != slots_.size()) await_change(lock);
}

BELAY_DECL void file_transfers::admit(file_transfer& transfer) {
  guard lock(mutex_);
  if (free_.empty()) waits_.fetch_add(1, std::memory_order_relaxed);
  while (free_.empty()) await_change(lock);
  transfer.slot_ = free_.back();
  free_.pop_back();
  transfer.under_way_.store(true, std::memory_order_relaxed);
  slots_[transfer.slot_] = {&transfer, 0};
  begin_call(transfer.slot_);
}

BELAY_DECL void file_transfers::await(const file_transfer& transfer) noexcept {
  guard lock(mutex_);
  while (transfer.under_way_.load(std::memory_order_relaxed)) await_change(lock);
}

BELAY_DECL bool file_transfers::over(const file_transfer& transfer) noexcept {
  guard lock(mutex_);
  if (transfer.under_way_.load(std::memory_order_relaxed)) poll(lock);
  return !transfer.under_way_.load(std::memory_order_relaxed);
}

BELAY_DECL file_transfer::file_transfer(file_transfers& owner, std::shared_ptr<const std::string> directory,
                                        const transfer_call& call)
    : owner_(&owner), directory_(std::move(directory)), call_(call) {
  if (call.bytes != 0) owner.admit(*this);
}

BELAY_DECL void file_transfer::settle() noexcept {
  if (under_way_.load(std::memory_order_acquire)) owner_->await(*this);
}

BELAY_DECL void file_transfer::take(file_transfer& other) noexcept {
  owner_ = other.owner_;
  directory_ = other.directory_;  // a copy: the owner still reads what is under way
  call_ = other.call_;
  if (other.under_way_.load(std::memory_order_acquire))
    owner_->move(other, *this);
  else
    copy_outcome(other);
  other.fault_ = tier_file_fault::none;
}

}  // namespace belay::inline BELAY_ABI
