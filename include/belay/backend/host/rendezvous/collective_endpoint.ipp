// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The long waits of one lane of a group, what its errors say, and the rendezvous of larger operations.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstring>

#include "belay/backend/host/failure/wait_diagnosis.hpp"
#include "belay/backend/host/rendezvous/collective_endpoint.hpp"
#include "belay/comm/event_count.hpp"
#include "belay/core/bounds.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

BELAY_DECL lane_endpoint::lane_endpoint(world_status& world, std::span<const int> members, lane which,
                                        std::uint32_t group, int me, group_layout shared)
    : world_(&world),
      members_(members),
      lane_(which),
      group_(group),
      me_(me),
      recorder_(&world.recorder(members[index_of(me)], which)),
      eager_buffers_(shared.eager_buffers(which)),
      eager_buffer_stride_(shared.eager_buffer_stride_bytes()),
      counts_(shared.counts(which), me, size()),
      forced_(static_cast<algorithm>(world.shared().shape().algorithm)),
      rendezvous_({&world, members, which, me, shared.all_flags(which)}),
      sources_(members.size()),
      destinations_(members.size()) {}

[[gnu::noinline]] BELAY_DECL void lane_endpoint::await(int who, looked_for done, deadline& until,
                                                       std::size_t moved_bytes) {
  if (world_->spin_while_moved(moved_bytes, lane_, done)) return;
  wait_diagnosis missing(*world_, members_, lane_, until);
  const auto absent = [&](int q) { return !rendezvous_.has_reached(q); };
  const bool reached = wait_until(rendezvous_.lane_view().doorbell_of(who), world_->before_sleep(lane_), done,
                                  [&] { return world_->aborted() || missing.hopeless(absent, who); });
  if (reached) return;
  if (!world_->aborted()) world_->abort(missing.cause(call(), absent, who));
  give_up(until);
}

[[gnu::noinline]] BELAY_DECL void lane_endpoint::tell_first_start(operation what, const where& at) {
  rendezvous_.next_operation();
  ++number_;
  std::string site = at.text();
  if (site.size() >= flag_payload_bytes) site.erase(0, site.size() + 1 - flag_payload_bytes);
  std::memcpy(rendezvous_.flag_line_of(me_).payload, site.c_str(), site.size() + 1);
  rendezvous_.publish(static_cast<std::uint32_t>(what) | first_start_bit);
}

[[gnu::noinline]] BELAY_DECL std::string lane_endpoint::call_text(int who) const {
  return fingerprint_of(who).text_with(send_counts_of(who));
}
[[gnu::noinline]] BELAY_DECL std::string lane_endpoint::site_of(int who) const {
  if ((rendezvous_.fingerprint_of(who) & first_start_bit) != 0)
    return reinterpret_cast<const char*>(rendezvous_.flag_line_of(who).payload);
  const auto patient_until = world_status::clock::now() + std::chrono::milliseconds(200);
  while (!has_recorded(who) && world_status::clock::now() < patient_until) lane_view::yield();
  return world_->site_of(world_rank(who), lane_);
}
BELAY_DECL bool lane_endpoint::has_recorded(int who) const {
  const flight_record last = world_->recorder(world_rank(who), lane_).last();
  return last.what != operation::none && last.group == group_ && last.number + 1 >= number_;
}

[[gnu::noinline]] BELAY_DECL void lane_endpoint::refuse(const mismatch_report& found) {
  fail({comm_fault::mismatch, found.culprits, found.message, found.there});
}
[[gnu::noinline]] BELAY_DECL void lane_endpoint::fail(const abort_cause& why) {
  world_->abort(why);
  rendezvous_.drain_access();
  world_->raise(call());
}
[[gnu::noinline]] BELAY_DECL void lane_endpoint::give_up(const deadline& until) {
  rendezvous_.drain_access();
  world_->raise(call(), until.seconds(*world_));
}
[[gnu::noinline]] BELAY_DECL void lane_endpoint::raise_aborted(const fingerprint& print, const where& at) const {
  world_->raise({print.what, group_, number_, print.bytes(), at});
}
[[gnu::noinline]] BELAY_DECL void lane_endpoint::refuse_difference() {
  refuse_unequal(
      *this, [&](int a, int b) { return fingerprint_of(a) == fingerprint_of(b); }, [&](int q) { return call_text(q); });
  __builtin_unreachable();
}

BELAY_DECL call_site lane_endpoint::call() const noexcept {
  const fingerprint print = fingerprint_of(me_);
  return {print.what, group_, number_ - 1, print.bytes(), *at_};
}
BELAY_DECL fingerprint lane_endpoint::fingerprint_of(int who) const noexcept {
  const std::uint32_t word = rendezvous_.fingerprint_of(who);
  return word == descriptor_follows ? descriptor_of(who).print() : fingerprint_of_word(word);
}

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
  waited_us_ = until.waited_us(*world_);
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
  recorder_->finish(waited_us_ + until.waited_us(*world_));
  variant_.end();
}
BELAY_DECL void collective_endpoint::exit_without_wait() noexcept {
  rendezvous_.exit_without_wait();
  recorder_->finish(waited_us_);
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
