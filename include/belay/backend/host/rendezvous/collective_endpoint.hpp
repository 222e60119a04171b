// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How the ranks of a group meet for one operation: each publishes what it brings, all wait for all, all compare. Of a
// small operation that is all there is: the data is in the lines. Of a larger one every rank may then use every other
// rank's buffers until all have left.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host/failure/wait_diagnosis.hpp"
#include "belay/backend/host/failure/world_status.hpp"
#include "belay/backend/host/memory/address_map.hpp"
#include "belay/backend/host/rendezvous/call_descriptor.hpp"
#include "belay/backend/host/rendezvous/count_vectors.hpp"
#include "belay/backend/host/rendezvous/group_layout.hpp"
#include "belay/backend/host/rendezvous/lane_view.hpp"
#include "belay/backend/host/rendezvous/peer_flags.hpp"
#include "belay/backend/host/rendezvous/rendezvous.hpp"
#include "belay/backend/host/tuning/algorithm.hpp"
#include "belay/backend/host/tuning/variant_choice.hpp"
#include "belay/comm/call_mismatch.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

static_assert(peer_flags<>::flag_payload_bytes == flag_payload_bytes);

/// What a meeting does besides: fingerprints are compared, the recorder is written, deadlines are kept. `unguarded`
/// leaves these out and is for a benchmark alone, which shows what they cost.
struct guarded {};
struct unguarded {};

/// One lane of one group, as one of its ranks sees it.
template <class Guard = guarded>
class basic_collective_endpoint {
 public:
  basic_collective_endpoint(world_status& world, const address_map& memory, std::span<const int> members, lane which,
                            std::uint32_t group, int me, group_layout shared)
      : world_(&world),
        memory_(&memory),
        members_(members),
        lane_(which),
        group_(group),
        me_(me),
        peers_(rank_set::of(members, group)),
        recorder_(&world.recorder(members[index_of(me)], which)),
        eager_buffers_(shared.eager_buffers(which)),
        eager_buffer_stride_(shared.eager_buffer_stride_bytes()),
        counts_(shared.counts(which), me, size()),
        forced_(static_cast<algorithm>(world.shared().shape().algorithm)),
        reads_others_(world.reads_others(members[index_of(me)])),
        rendezvous_({&world, members, which, me, shared.all_flags(which)}),
        variant_(size(), me, forced_) {}

  [[nodiscard]] int rank() const noexcept { return me_; }
  /// The memory access of copies on this machine.
  [[nodiscard]] const copy_table& copies() const noexcept { return world_->copies(); }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  /// The rank `k` places behind this one, in a circle, for k of 0 to size - 1.
  [[nodiscard]] int behind(int k) const noexcept { return rendezvous_.behind(k); }
  [[nodiscard]] int world_rank(int who) const noexcept { return members_[static_cast<std::size_t>(who)]; }

  /// The way of an operation of which each rank brings at most `bytes`: line or page for `swap`, automatic for `enter`.
  [[nodiscard, gnu::always_inline]] inline algorithm eager_algorithm(
      std::size_t bytes, std::size_t element_bytes, eager_traffic which = eager_traffic::all) const noexcept {
    return choose_small(forced_, bytes, element_bytes, size(), which);
  }

  // What says what a call is, mostly constants, goes from where they are known straight into this rank's line, in
  // `swap` and in `enter`; the rest are calls of their own, so that callers stay short. Handed on in memory, fields
  // that are written one by one and read in pairs keep a processor waiting for longer than it takes to compare them.

  /// A small operation, whose data is in the lines or pages: `payload_bytes` of this rank. Returns when all are there
  /// and agree, to be read by `payloads` until the next call or the payload's end; throws `comm_error` before that
  /// otherwise.
  [[gnu::always_inline]] inline void eager_round(algorithm how, const fingerprint& print, const void* payload,
                                                 std::size_t payload_bytes, world_status::clock::duration limit,
                                                 const where& at) {
    begin(print, at);
    if (how == algorithm::flag_line) {
      eager_by_flag_lines(compares ? inline_fingerprint(print) : descriptor_follows, payload, payload_bytes, limit);
    } else {
      put(call_descriptor::of(print));
      eager_by_buffers(print.what, print.bytes(), payload, payload_bytes, limit);
    }
  }
  /// The data of all ranks in the present small operation.
  [[nodiscard]] peer_payloads payloads() const noexcept { return payloads_; }

  /// A larger operation: returns when all ranks have entered the same one; throws `comm_error` before any of them has
  /// gone on otherwise.
  [[gnu::always_inline]] inline void enter_rendezvous(const call_buffers& mine, world_status::clock::duration limit,
                                                      const where& at) {
    begin(mine.print, at);
    bring(mine);
    rendezvous_with_all(mine.print.what, mine.print.bytes(), limit);
  }
  [[gnu::always_inline]] inline void enter_rendezvous(const counted_call_buffers& mine,
                                                      world_status::clock::duration limit, const where& at) {
    begin(mine.print, at);
    counts_.bring(rendezvous_.operation_number(), mine.send_counts, mine.receive_counts);
    fill_eager_buffer(mine.input, mine.eager_bytes);
    bring(mine);
    rendezvous_with_all(mine.print.what, mine.print.bytes(), limit);
  }

  /// What rank `who` payloads to the present operation: this rank's from its own memory (see peer_payloads), others'
  /// where it lies.
  [[nodiscard]] const call_descriptor& descriptor_of(int who) const noexcept {
    if (who == me_) return own_;
    return *std::launder(reinterpret_cast<const call_descriptor*>(rendezvous_.flag_line_of(who).payload));
  }
  [[nodiscard]] const void* own_input() const noexcept { return own_input_; }
  [[nodiscard]] const std::byte* input_of(int who) const noexcept { return memory_->resolve(descriptor_of(who).input); }
  [[nodiscard]] std::byte* output_of(int who) const noexcept { return memory_->resolve(descriptor_of(who).output); }
  [[nodiscard]] std::span<const std::size_t> send_counts_of(int who) const noexcept {
    return counts_.of(rendezvous_.operation_number(), who, count_vectors::sent);
  }
  [[nodiscard]] std::span<const std::size_t> receive_counts_of(int who) const noexcept {
    return counts_.of(rendezvous_.operation_number(), who, count_vectors::received);
  }
  /// What all ranks have in their pages; of this rank, what it put there.
  [[nodiscard]] peer_payloads eager_buffers() const noexcept { return eager_payloads_beside(own_input_); }
  /// Every rank can load and store what every other payloads.
  [[nodiscard]] bool all_direct() const noexcept { return (flags_of_all_ & call_descriptor::loads_and_stores) != 0; }
  /// Every rank may have the kernel copy what it cannot load.
  [[nodiscard]] bool all_copy() const noexcept { return (flags_of_all_ & call_descriptor::cma_possible) != 0; }
  /// Every rank has put what peers do not see into its page.
  [[nodiscard]] bool all_in_eager_buffers() const noexcept {
    return (flags_of_all_ & call_descriptor::in_eager_buffer) != 0;
  }
  /// Some rank's output is its input.
  [[nodiscard]] bool any_in_place() const noexcept { return (flags_of_any_ & call_descriptor::in_place) != 0; }
  [[nodiscard]] algorithm forced_algorithm() const noexcept { return forced_; }
  /// How the present operation is to be done, the same on all ranks.
  [[nodiscard]] variant chosen() const noexcept { return variant_.chosen(); }

  /// Reads `bytes` at `offset` of the buffer that rank `who` payloads: by loads where it is seen, else by the kernel.
  void fetch(int who, memory_reference from, std::size_t offset, void* to, std::size_t bytes,
             memory_access by = memory_access::automatic) {
    if (bytes == 0) return;
    if (const std::byte* const seen = memory_->resolve(from)) {
      world_->copies().copy_by(by, to, seen + offset, bytes);
    } else if (who == me_) {
      std::memcpy(to, reinterpret_cast<const std::byte*>(from.offset()) + offset, bytes);
    } else if (!read_process(world_->pid_of(world_rank(who)), from, offset, to, bytes)) {
      fail(world_->unreadable(world_rank(me_), world_rank(who), lane_, bytes, errno));
    }
  }
  /// Where rank `who` puts, in turn, what its peers cannot see: one of two halves.
  [[nodiscard]] std::byte* staging_of(int who, std::size_t operation_number) const noexcept {
    return world_->shared().staging(world_rank(who), lane_) + operation_number % 2 * staging_room();
  }
  /// Bytes of one half.
  [[nodiscard]] std::size_t staging_room() const noexcept { return world_->shared().shape().staging_bytes / 2; }

  /// Between `enter` and `leave`: returns when all ranks have called it as often.
  void round() {
    deadline until(limit_, *recorder_);
    rendezvous_.meet(waiting{this, &until, moved_bytes_});
  }

  /// Instead of `leave` where all ranks used no more than what is in pages.
  void exit_without_wait() noexcept {
    rendezvous_.exit_without_wait();
    recorder_->leave(waited_);
  }

  /// Returns when nobody uses anybody's buffers any more. Throws `comm_error` when a rank did not do its part.
  void exit_rendezvous() {
    deadline until(limit_, *recorder_);
    if (!rendezvous_.exit(waiting{this, &until, moved_bytes_})) give_up(until);
    recorder_->leave(waited_ + until.waited_us());
    variant_.end();
  }

  /// Between `enter` and `leave`: compares what fingerprints cannot hold. `alike(a, b)` compares two ranks and
  /// `text(rank)` tells what one payloads; unless all are alike, every rank throws `comm_error`.
  template <class Alike, class Text>
  void expect_alike(Alike alike, Text text) {
    bool same = true;
    for (int q = 1; q < size(); ++q) same = same && alike(0, q);
    if (same) return;
    const mismatch_report found = describe(alike, text);
    refuse(found.culprits, found.message, found.there);
  }

  /// Stops the world because the contributions do not fit together; every rank of the group calls it in the
  /// same situation.
  [[noreturn]] void refuse(std::vector<int> culprits, const std::string& message, const std::string& there) {
    fail({comm_fault::mismatch, std::move(culprits), message, there});
  }

  /// Stops the world because this rank cannot go on.
  [[noreturn]] void fail(const abort_cause& why) {
    world_->abort(why);
    rendezvous_.drain_access();
    world_->raise(call());
  }

  /// What rank `who` calls.
  [[nodiscard]] std::string call_text(int who) const {
    const fingerprint print = fingerprint_of(who);
    return print.shape == 0 ? print.text() : print.text_with(send_counts_of(who));
  }
  /// Where rank `who` made the present call. Its recorder tells that a moment after its line is there.
  [[nodiscard]] std::string site_of(int who) const {
    const auto patient_until = world_status::clock::now() + std::chrono::milliseconds(200);
    while (!has_recorded(who) && world_status::clock::now() < patient_until) lane_view::yield();
    return world_->site_of(world_rank(who), lane_);
  }

 private:
  static constexpr bool compares = std::same_as<Guard, guarded>;
  [[nodiscard]] static std::size_t index_of(int who) noexcept { return static_cast<std::size_t>(who); }
  [[gnu::noinline]] void eager_by_flag_lines(std::uint32_t word, const void* payload, std::size_t payload_bytes,
                                             world_status::clock::duration limit) {
    copy_flag_payload(rendezvous_.flag_line_of(me_).payload, payload, payload_bytes);
    rendezvous_.publish(word);
    record(operation_of_word(word), bytes_of_word(word));
    payloads_ = {rendezvous_.flag_line_of(0).payload, sizeof(peer_flags<>), me_,
                 static_cast<const std::byte*>(payload)};
    deadline until(limit, *recorder_);
    if (!all_flag_lines(word, until) && compares) refuse_difference();
    end(until);
  }
  [[gnu::noinline]] void eager_by_buffers(operation what, std::size_t bytes, const void* payload,
                                          std::size_t payload_bytes, world_status::clock::duration limit) {
    fill_eager_buffer(payload, payload_bytes);
    rendezvous_.publish_full(descriptor_follows);
    record(what, bytes);
    payloads_ = eager_payloads_beside(payload);
    deadline until(limit, *recorder_);
    bool alike = all_flag_lines(descriptor_follows, until);
    for (int k = 1; k < size() && compares; ++k) alike = alike && descriptor_of(behind(k)).is_same_call(own_);
    if (!alike && compares) refuse_difference();
    end(until);
  }

  [[gnu::always_inline]] inline void bring(const call_buffers& mine) {
    rendezvous_.prepare_to_publish();
    own_input_ = mine.input;
    call_descriptor said = mine.as_descriptor(*memory_, peers_, reads_others_);
    if (!said.is_seen() && forced_ == algorithm::automatic && mine.input_bytes <= eager_buffer_bytes(size())) {
      fill_eager_buffer(mine.input, mine.input_bytes);
      said.head |= call_descriptor::in_eager_buffer;
    }
    said.head |= variant_.ask(said.head, std::max(mine.input_bytes, mine.output_bytes));
    put(said);
  }
  // Into this rank's line, and into memory that is nobody else's.
  [[gnu::always_inline]] inline void put(const call_descriptor& mine) noexcept {
    ::new (static_cast<void*>(rendezvous_.flag_line_of(me_).payload)) call_descriptor(mine);
    own_ = mine;
  }
  [[gnu::noinline]] void rendezvous_with_all(operation what, std::size_t bytes, world_status::clock::duration limit) {
    limit_ = limit;
    moved_bytes_ = bytes * members_.size();
    rendezvous_.publish_full(descriptor_follows);
    rendezvous_.prepare_to_leave();
    record(what, bytes);
    deadline until(limit, *recorder_);
    bool alike = all_flag_lines(descriptor_follows, until);
    waited_ = until.waited_us();
    if (!rendezvous_.begin_access()) give_up(until);
    flags_of_all_ = flags_of_any_ = own_.head;
    for (int k = 1; k < size(); ++k) {
      const call_descriptor& theirs = descriptor_of(behind(k));
      alike = alike && theirs.is_same_call(own_);
      flags_of_all_ &= theirs.head;
      flags_of_any_ |= theirs.head;
    }
    if (!alike) refuse_difference();
    variant_.agree(descriptor_of(0), flags_of_all_ ^ flags_of_any_);
  }

  [[nodiscard]] std::byte* eager_buffer_of(int who) const noexcept {
    return eager_buffers_ + (index_of(who) * 2 + rendezvous_.operation_number() % 2) * eager_buffer_stride_;
  }
  [[nodiscard]] peer_payloads eager_payloads_beside(const void* own) const noexcept {
    return {eager_buffer_of(0), 2 * eager_buffer_stride_, me_, static_cast<const std::byte*>(own)};
  }
  // Into this rank's page, before its line.
  void fill_eager_buffer(const void* data, std::size_t bytes) noexcept {
    if (bytes > 0) std::memcpy(eager_buffer_of(me_), data, bytes);
  }

  [[gnu::always_inline]] inline void begin(const fingerprint& print, const where& at) {
    if (world_->aborted()) refuse_late(print, at);
    at_ = &at;
    ++number_;
    rendezvous_.next_operation();
  }
  [[nodiscard]] bool has_recorded(int who) const {
    const flight_record last = world_->recorder(world_rank(who), lane_).last();
    return last.what != operation::none && last.group == group_ && last.number + 1 >= number_;
  }
  // Once this rank's line is on its way: peers need not wait for it.
  void record(operation what, std::size_t bytes) noexcept {
    if constexpr (compares) recorder_->enter(what, group_, number_ - 1, bytes, at_->file, at_->line);
  }
  [[noreturn, gnu::cold, gnu::noinline]] void refuse_late(fingerprint print, const where& at) const {
    world_->raise({print.what, group_, number_, print.bytes(), at});
  }
  void end(const deadline& until) noexcept {
    if constexpr (compares) recorder_->leave(until.waited_us());
  }
  // The present call, for an error.
  [[nodiscard]] call_site call() const noexcept {
    const fingerprint print = fingerprint_of(me_);
    return {print.what, group_, number_ - 1, print.bytes(), *at_};
  }

  // Returns when all lines are there, with whether they call the same.
  [[nodiscard]] bool all_flag_lines(std::uint32_t word, deadline& until) {
    return rendezvous_.await_flag_lines(word, waiting{this, &until}) == flag_lines::alike;
  }
  // What waits for one rank: returns when `done`; otherwise finds out why not, stops the world and throws.
  struct waiting {
    basic_collective_endpoint* self;
    deadline* until;
    std::size_t moved_bytes = 0;  // by peers that are inside

    // Most peers are about to arrive: who first prepares for more is late for them.
    template <class Done>
    bool operator()(int who, Done done) const {
      for (int looks = self->world_->shares_cores() ? 32 : 0; looks < 32; ++looks) {
        relax();
        if (done(std::memory_order_acquire)) return true;
      }
      if (!self->world_->spin_while_moved(moved_bytes, self->lane_, done)) self->await(who, done, *until);
      return true;
    }
  };
  // (A call of its own: what needs no waiting stays short.)
  template <class Done>
  [[gnu::noinline]] void await(int who, Done done, deadline& until) {
    if constexpr (std::same_as<Guard, unguarded>) {
      while (!done(std::memory_order_acquire)) relax();
      return;
    }
    wait_diagnosis missing(*world_, members_, lane_, until);
    const auto absent = [&](int q) { return !rendezvous_.has_come(q); };
    const bool met = wait_until(rendezvous_.lane_view().doorbell_of(who), world_->before_sleep(lane_), done,
                                [&] { return world_->aborted() || missing.hopeless(absent, who); });
    if (met) return;
    if (!world_->aborted()) world_->abort(missing.cause(call(), absent, who));
    give_up(until);
  }

  // After the world has stopped.
  [[noreturn, gnu::cold]] void give_up(const deadline& until) {
    rendezvous_.drain_access();
    world_->raise(call(), until.seconds());
  }

  [[nodiscard]] fingerprint fingerprint_of(int who) const noexcept {
    const std::uint32_t word = rendezvous_.fingerprint_of(who);
    return word == descriptor_follows ? descriptor_of(who).print() : fingerprint_of_word(word);
  }
  [[noreturn, gnu::cold]] void refuse_difference() {
    const auto alike = [&](int a, int b) { return fingerprint_of(a) == fingerprint_of(b); };
    const mismatch_report found = describe(alike, [&](int q) { return call_text(q); });
    refuse(found.culprits, found.message, found.there);
  }

  template <class Alike, class Text>
  [[nodiscard]] mismatch_report describe(Alike alike, Text text) const {
    return difference_among(size(), alike, [&](int q) { return rank_call{world_rank(q), text(q), site_of(q)}; });
  }

  world_status* world_;
  const address_map* memory_;
  std::span<const int> members_;
  lane lane_;
  std::uint32_t group_;
  int me_;
  rank_set peers_;
  flight_recorder<>* recorder_;
  std::byte* eager_buffers_;
  std::size_t eager_buffer_stride_;
  count_vectors counts_;
  algorithm forced_;
  bool reads_others_;
  rendezvous<lane_view> rendezvous_;
  variant_choice variant_;
  std::uint64_t number_ = 0;  // of operations begun
  std::uint64_t waited_ = 0;
  peer_payloads payloads_;
  call_descriptor own_;  // of the present operation
  const void* own_input_ = nullptr;
  std::uint64_t flags_of_all_ = 0;  // bits of offers
  std::uint64_t flags_of_any_ = 0;
  std::size_t moved_bytes_ = 0;  // in the present larger operation, about
  world_status::clock::duration limit_{};
  const where* at_ = nullptr;  // of the present call, as long as that lasts
};

using collective_endpoint = basic_collective_endpoint<>;

}  // namespace host
}  // namespace belay::inline BELAY_ABI
