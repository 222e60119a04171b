// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The rendezvous of larger operations.
#pragma once

#include <cerrno>
#include <cstring>

#include "belay/backend/host/rendezvous/collective_endpoint.hpp"
#include "belay/core/bounds.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

BELAY_DECL collective_endpoint::collective_endpoint(world_status& world, const address_map& memory,
                                                    std::span<const int> members, lane which, std::uint32_t group,
                                                    int me, group_layout shared)
    : basic_eager_endpoint<>(world, members, which, group, me, shared),
      memory_(&memory),
      peers_(rank_set::of(members, group)),
      reads_others_(world.reads_others(members[index_of(me)])),
      variant_(size(), me, forced_) {}

BELAY_DECL void collective_endpoint::enter_rendezvous(const call_buffers& mine, world_status::clock::duration limit,
                                                      const where& at) {
  begin(mine.print, at);
  publish_descriptor(mine, limit);
}
BELAY_DECL void collective_endpoint::enter_rendezvous(const counted_call_buffers& mine,
                                                      world_status::clock::duration limit, const where& at) {
  begin(mine.print, at);
  counts_.put(rendezvous_.operation_number(), mine.send_counts, mine.receive_counts);
  fill_eager_buffer(mine.input, mine.eager_bytes);
  publish_descriptor(mine, limit);
}

BELAY_DECL void collective_endpoint::publish_descriptor(const call_buffers& mine, world_status::clock::duration limit) {
  rendezvous_.prepare_to_publish();
  own_input_ = mine.input;
  call_descriptor descriptor = mine.as_descriptor(*memory_, peers_, reads_others_);
  if (!descriptor.is_direct() && forced_ == algorithm::automatic && mine.input_bytes <= eager_buffer_bytes(size())) {
    fill_eager_buffer(mine.input, mine.input_bytes);
    descriptor.head |= call_descriptor::in_eager_buffer;
  }
  descriptor.head |= variant_.ask(descriptor.head, greater_of(mine.input_bytes, mine.output_bytes));
  put(descriptor);
  limit_ = limit;
  moved_bytes_ = mine.print.bytes() * members_.size();
  rendezvous_.publish_full(descriptor_follows);
  rendezvous_.prepare_to_exit();
  record(mine.print.what, mine.print.bytes());
  deadline until(limit, *recorder_);
  bool alike = await_flag_lines(descriptor_follows, until);
  waited_us_ = until.waited_us();
  if (!rendezvous_.begin_access()) give_up(until);
  flags_of_all_ = flags_of_any_ = own_.head;
  for (int k = 1; k < size(); ++k) {
    const call_descriptor& theirs = descriptor_of(ring_peer(k));
    alike = alike && theirs.is_same_call(own_);
    flags_of_all_ &= theirs.head;
    flags_of_any_ |= theirs.head;
  }
  if (!alike) refuse_difference();
  variant_.agree(descriptor_of(0), flags_of_all_ ^ flags_of_any_);
}

BELAY_DECL void collective_endpoint::exit_rendezvous() {
  deadline until(limit_, *recorder_);
  if (!rendezvous_.exit(until_moved(until))) give_up(until);
  recorder_->leave(waited_us_ + until.waited_us());
  variant_.end();
}
BELAY_DECL void collective_endpoint::exit_without_wait() noexcept {
  rendezvous_.exit_without_wait();
  recorder_->leave(waited_us_);
}

BELAY_DECL void collective_endpoint::pass_round() {
  deadline until(limit_, *recorder_);
  rendezvous_.pass_round(until_moved(until));
}

BELAY_DECL void collective_endpoint::fetch(int who, memory_reference from, std::size_t offset, void* to,
                                           std::size_t bytes, memory_access by) {
  if (bytes == 0) return;
  if (const std::byte* const mapped = memory_->resolve(from)) {
    copies().copy_by(by, to, mapped + offset, bytes);
  } else if (who == me_) {
    std::memcpy(to, reinterpret_cast<const std::byte*>(from.offset()) + offset, bytes);
  } else if (!read_process(world_->pid_of(world_rank(who)), from, offset, to, bytes)) {
    fail(world_->unreadable(world_rank(me_), world_rank(who), lane_, bytes, errno));
  }
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
