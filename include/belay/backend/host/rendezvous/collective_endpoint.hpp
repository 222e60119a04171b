// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One lane of one group, as one of its ranks sees it: small operations are eager rounds, whose data lies in flag lines
// or eager buffers; larger ones are rendezvous, in which each rank publishes a descriptor of its buffers, waits for all
// and compares.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "belay/backend/host/failure/world_status.hpp"
#include "belay/backend/host/memory/address_map.hpp"
#include "belay/backend/host/rendezvous/call_descriptor.hpp"
#include "belay/backend/host/rendezvous/group_layout.hpp"
#include "belay/backend/host/rendezvous/peer_flags.hpp"
#include "belay/backend/host/rendezvous/rendezvous.hpp"
#include "belay/backend/host/tuning/algorithm_rules.hpp"
#include "belay/backend/host/tuning/variant_choice.hpp"
#include "belay/comm/call_mismatch.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/comm/reduce_simd.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// The counts of all ranks in an operation on parts of different sizes, in one lane of a group, as one of its ranks
/// sees them. Each rank has two vectors with a count for each rank, what it sends and what it receives, in shared
/// memory; one pair for even operation numbers and one for odd.
class count_vectors {
 public:
  enum count_direction : std::size_t { sent, received };
  using counts = std::span<const std::size_t>;

  count_vectors(std::size_t* shared, int me, int ranks) noexcept
      : shared_(shared), me_(me), ranks_(static_cast<std::size_t>(ranks)) {}

  /// Stores this rank's vectors, before it publishes its line. The caller keeps its own until the operation is over.
  void put(std::uint32_t operation_number, counts send, counts receive) noexcept {
    own_ = {send, receive};
    for (const count_direction which : {sent, received})
      std::copy(own_[which].begin(), own_[which].end(), at(operation_number, me_, which));
  }
  /// The vector of rank `who`; this rank's is its caller's own.
  [[nodiscard]] counts of(std::uint32_t operation_number, int who, count_direction which) const noexcept {
    return who == me_ ? own_[which] : counts(at(operation_number, who, which), ranks_);
  }

 private:
  [[nodiscard]] std::size_t* at(std::uint32_t operation_number, int who, count_direction which) const noexcept {
    return shared_ + ((static_cast<std::size_t>(who) * 2 + operation_number % 2) * 2 + which) * ranks_;
  }

  std::size_t* shared_;
  int me_;
  std::size_t ranks_;
  std::array<counts, 2> own_;
};

/// The flags, doorbells and world that the steps of `rendezvous` act on, in one lane. It only forwards, so that the
/// model checker can put its own view in its place.
class lane_view {
 public:
  lane_view(world_status* world, std::span<const int> members, lane which, int me, peer_flags<>* all_flags) noexcept
      : world_(world),
        members_(members),
        lane_(which),
        me_(me),
        flags_(all_flags),
        own_doorbell_(&doorbell_of_member(me)) {}

  [[nodiscard]] int me() const noexcept { return me_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] peer_flags<>& flags_of(int who) const noexcept { return flags_[who]; }
  [[nodiscard]] doorbell& doorbell_of(int who) const noexcept {
    return who == me_ ? *own_doorbell_ : doorbell_of_member(who);
  }
  [[nodiscard]] bool aborted(std::memory_order order) const noexcept { return world_->aborted(order); }
  [[nodiscard]] address_space space() const noexcept { return world_->space(); }
  static void yield() noexcept { std_atomics::yield(); }

 private:
  [[nodiscard]] doorbell& doorbell_of_member(int who) const noexcept {
    return world_->doorbell_of(members_[static_cast<std::size_t>(who)], lane_);
  }

  world_status* world_;
  std::span<const int> members_;
  lane lane_;
  int me_;
  peer_flags<>* flags_;
  doorbell* own_doorbell_;  // used in every operation
};

static_assert(peer_flags<>::flag_payload_bytes == flag_payload_bytes);

/// The part that eager rounds and rendezvous have in common: it begins operations, waits for peers until a deadline and
/// says what went wrong. Allocates only when it is made.
class lane_endpoint {
 public:
  [[nodiscard]] int rank() const noexcept { return me_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  /// The rank `k` after this one, in a ring, for k of 0 to size - 1.
  [[nodiscard]] int ring_peer(int k) const noexcept { return rendezvous_.ring_peer(k); }
  [[nodiscard]] int world_rank(int who) const noexcept { return members_[index_of(who)]; }
  [[nodiscard]] algorithm forced_algorithm() const noexcept { return forced_; }
  /// The memory access of copies on this machine.
  [[nodiscard]] const copy_table& copies() const noexcept { return world_->copies(); }

  /// The algorithm of an operation of which each rank brings at most `bytes`: flag line or eager buffer for
  /// `eager_round`, automatic for `enter_rendezvous`.
  [[nodiscard, gnu::always_inline]] inline algorithm eager_algorithm(
      std::size_t bytes, std::size_t element_bytes, eager_traffic which = eager_traffic::all) const noexcept {
    return choose_small(forced_, bytes, element_bytes, size(), which);
  }

  /// Room for the arrays of a reduction: a source of each rank, and as many destinations.
  [[nodiscard]] std::span<const std::byte*> sources() noexcept { return sources_; }
  [[nodiscard]] std::span<std::byte*> destinations() noexcept { return destinations_; }

  /// The descriptor that rank `who` gave of the present larger operation: this rank's from its own memory (see
  /// peer_payloads), peers' where it lies.
  [[nodiscard]] const call_descriptor& descriptor_of(int who) const noexcept {
    if (who == me_) return own_;
    return *std::launder(reinterpret_cast<const call_descriptor*>(rendezvous_.flag_line_of(who).payload));
  }
  [[nodiscard]] std::span<const std::size_t> send_counts_of(int who) const noexcept {
    return counts_.of(rendezvous_.operation_number(), who, count_vectors::sent);
  }
  [[nodiscard]] std::span<const std::size_t> receive_counts_of(int who) const noexcept {
    return counts_.of(rendezvous_.operation_number(), who, count_vectors::received);
  }

  /// The present call of rank `who` in words, with its counts.
  [[nodiscard, gnu::cold]] std::string call_text(int who) const;
  /// Where rank `who` made the present call. Its recorder says that shortly after its line is there.
  [[nodiscard, gnu::cold]] std::string site_of(int who) const;

  /// Publishes what was started on the group, as the last line of this lane: a peer that calls sees that it differs.
  [[gnu::cold]] void tell_first_start(operation what, const where& at);

  /// Aborts the world because the ranks' calls do not fit together. Every rank of the group calls it in the same
  /// situation.
  [[noreturn, gnu::cold]] void refuse(const mismatch_report& found);
  /// Aborts the world because this rank cannot go on.
  [[noreturn, gnu::cold]] void fail(const abort_cause& why);

 protected:
  lane_endpoint(world_status& world, std::span<const int> members, lane which, std::uint32_t group, int me,
                group_layout shared);

  [[nodiscard]] static std::size_t index_of(int who) noexcept { return static_cast<std::size_t>(who); }

  [[gnu::always_inline]] inline void begin(const fingerprint& print, const where& at) {
    if (world_->aborted()) raise_aborted(print, at);
    at_ = &at;
    ++number_;
    rendezvous_.next_operation();
  }
  // Once this rank's line has been published, so that peers need not wait for it.
  void record(operation what, std::size_t bytes) noexcept {
    recorder_->enter(what, group_, number_ - 1, bytes, at_->file, at_->line);
  }
  // Into this rank's line, and into memory that no peer reads.
  [[gnu::always_inline]] inline void put(const call_descriptor& mine) noexcept {
    ::new (static_cast<void*>(rendezvous_.flag_line_of(me_).payload)) call_descriptor(mine);
    own_ = mine;
  }

  [[nodiscard]] std::byte* eager_buffer_of(int who) const noexcept {
    return eager_buffers_ + (index_of(who) * 2 + rendezvous_.operation_number() % 2) * eager_buffer_stride_;
  }
  [[nodiscard]] peer_payloads eager_payloads(const void* own) const noexcept {
    return {eager_buffer_of(0), 2 * eager_buffer_stride_, me_, static_cast<const std::byte*>(own)};
  }
  // Before this rank publishes its line.
  void fill_eager_buffer(const void* data, std::size_t bytes) noexcept {
    if (bytes > 0) std::memcpy(eager_buffer_of(me_), data, bytes);
  }

  // The wait for one rank: returns when `done`; otherwise finds out why not, aborts the world and throws.
  struct waiting {
    lane_endpoint* self;
    deadline* until;
    std::size_t moved_bytes = 0;  // by peers with a begun access

    // Most peers are about to arrive: preparing for a longer wait first would be late for them.
    template <class Done>
    bool operator()(int who, Done done) const {
      for (int looks = self->world_->shares_cores() ? 32 : 0; looks < 32; ++looks) {
        relax();
        if (done(std::memory_order_acquire)) return true;
      }
      self->await(who, done, *until, moved_bytes);
      return true;
    }
  };
  // Returns when all lines are there, with whether they call the same.
  [[nodiscard]] bool await_flag_lines(std::uint32_t word, deadline& until) {
    return rendezvous_.await_flag_lines(word, waiting{this, &until}) == flag_lines::alike;
  }

  [[noreturn, gnu::cold]] void refuse_difference();
  // After the world has been aborted.
  [[noreturn, gnu::cold]] void give_up(const deadline& until);

  world_status* world_;
  std::span<const int> members_;
  lane lane_;
  std::uint32_t group_;
  int me_;
  flight_recorder<>* recorder_;
  std::byte* eager_buffers_;
  std::size_t eager_buffer_stride_;
  count_vectors counts_;
  algorithm forced_;
  rendezvous<lane_view> rendezvous_;
  std::uint64_t number_ = 0;  // of operations begun
  call_descriptor own_;       // of the present operation

 private:
  using looked_for = function_ref<bool(std::memory_order)>;

  void await(int who, looked_for done, deadline& until, std::size_t moved_bytes);
  [[nodiscard, gnu::cold]] bool has_recorded(int who) const;
  [[noreturn, gnu::cold]] void raise_aborted(const fingerprint& print, const where& at) const;
  // The present call, for an error.
  [[nodiscard]] call_site call() const noexcept;
  [[nodiscard]] fingerprint fingerprint_of(int who) const noexcept;

  const where* at_ = nullptr;  // of the present call, as long as that lasts
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> destinations_;
};

/// Whether an endpoint compares fingerprints, writes the recorder and keeps deadlines. `unguarded` leaves these out: it
/// is for a benchmark, which shows what they cost.
struct guarded {};
struct unguarded {};

/// The eager rounds of one lane of one group: operations of up to 2 KiB of each rank. Every rank publishes its own data
/// and waits for all others'; there is nothing to exit from.
template <class Guard = guarded>
class basic_eager_endpoint : public lane_endpoint {
 public:
  basic_eager_endpoint(world_status& world, std::span<const int> members, lane which, std::uint32_t group, int me,
                       group_layout shared)
      : lane_endpoint(world, members, which, group, me, shared) {}

  // What a call is, mostly constants, goes from where it is known straight into this rank's line; the rest are calls of
  // their own, so that callers stay short. Handed on in memory, fields that are written one by one and read in pairs
  // would keep a processor waiting for longer than it takes to compare them.

  /// A small operation by flag lines or eager buffers, with `payload_bytes` of this rank. Returns when the data of all
  /// ranks is there and they agree; it is read by `payloads` until the next call or the payload's end. Throws
  /// `comm_error` before that otherwise.
  [[gnu::always_inline]] inline void eager_round(algorithm how, const fingerprint& print, const void* payload,
                                                 std::size_t payload_bytes, world_status::clock::duration limit,
                                                 const where& at) {
    begin(print, at);
    if (how == algorithm::flag_line) {
      exchange_flag_lines(compares ? inline_fingerprint(print) : descriptor_follows, payload, payload_bytes, limit);
    } else {
      put(call_descriptor::of(print));
      exchange_eager_buffers(print.what, print.bytes(), payload, payload_bytes, limit);
    }
  }
  /// The data of all ranks in the present small operation.
  [[nodiscard]] peer_payloads payloads() const noexcept { return payloads_; }

 private:
  static constexpr bool compares = std::same_as<Guard, guarded>;

  [[gnu::noinline]] void exchange_flag_lines(std::uint32_t word, const void* payload, std::size_t payload_bytes,
                                             world_status::clock::duration limit) {
    copy_flag_payload(rendezvous_.flag_line_of(me_).payload, payload, payload_bytes);
    rendezvous_.publish(word);
    if constexpr (compares) record(operation_of_word(word), bytes_of_word(word));
    payloads_ = {rendezvous_.flag_line_of(0).payload, sizeof(peer_flags<>), me_,
                 static_cast<const std::byte*>(payload)};
    if constexpr (!compares) return spin_for_flag_lines(word);
    deadline until(limit, *recorder_);
    if (!await_flag_lines(word, until)) refuse_difference();
    recorder_->finish(until.waited_us(*world_));
  }
  [[gnu::noinline]] void exchange_eager_buffers(operation what, std::size_t bytes, const void* payload,
                                                std::size_t payload_bytes, world_status::clock::duration limit) {
    fill_eager_buffer(payload, payload_bytes);
    rendezvous_.publish_full(descriptor_follows);
    if constexpr (compares) record(what, bytes);
    payloads_ = eager_payloads(payload);
    if constexpr (!compares) return spin_for_flag_lines(descriptor_follows);
    deadline until(limit, *recorder_);
    bool alike = await_flag_lines(descriptor_follows, until);
    for (int k = 1; k < size(); ++k) alike = alike && descriptor_of(ring_peer(k)).is_same_call(own_);
    if (!alike) refuse_difference();
    recorder_->finish(until.waited_us(*world_));
  }
  void spin_for_flag_lines(std::uint32_t word) const noexcept {
    static_cast<void>(rendezvous_.await_flag_lines(word, [](int, auto done) {
      while (!done(std::memory_order_acquire)) relax();
      return true;
    }));
  }

  peer_payloads payloads_;
};

/// One lane of one group, as one of its ranks sees it: all that a collective needs. In a rendezvous every rank may use
/// every other rank's buffers until all have exited.
class collective_endpoint : public basic_eager_endpoint<> {
 public:
  collective_endpoint(world_status& world, const address_map& memory, std::span<const int> members, lane which,
                      std::uint32_t group, int me, group_layout shared);

  /// Returns when all ranks have entered the same operation; throws `comm_error` before any of them has gone on
  /// otherwise.
  void enter_rendezvous(const call_buffers& mine, world_status::clock::duration limit, const where& at);
  void enter_rendezvous(const counted_call_buffers& mine, world_status::clock::duration limit, const where& at);

  /// Returns when no rank uses another's buffers any more. Throws `comm_error` when a rank did not do its part.
  void exit_rendezvous();
  /// Instead of `exit_rendezvous` where all ranks used no more than eager buffers.
  void exit_without_wait() noexcept;

  // Between the two.

  /// A barrier: returns when all ranks have called it as often.
  void pass_round();

  [[nodiscard]] const void* own_input() const noexcept { return own_input_; }
  [[nodiscard]] const std::byte* input_of(int who) const noexcept { return memory_->resolve(descriptor_of(who).input); }
  [[nodiscard]] std::byte* output_of(int who) const noexcept { return memory_->resolve(descriptor_of(who).output); }
  /// The eager buffers of all ranks; of this rank, what it put there.
  [[nodiscard]] peer_payloads eager_buffers() const noexcept { return eager_payloads(own_input_); }
  /// Every rank can load from and store to every other's buffers.
  [[nodiscard]] bool all_direct() const noexcept { return (flags_of_all_ & call_descriptor::loads_and_stores) != 0; }
  /// Every rank may have the kernel copy what it cannot load.
  [[nodiscard]] bool all_copy() const noexcept { return (flags_of_all_ & call_descriptor::cma_possible) != 0; }
  /// Every rank has put what peers cannot load into its eager buffer.
  [[nodiscard]] bool all_in_eager_buffers() const noexcept {
    return (flags_of_all_ & call_descriptor::in_eager_buffer) != 0;
  }
  /// Some rank's output is its input.
  [[nodiscard]] bool any_in_place() const noexcept { return (flags_of_any_ & call_descriptor::in_place) != 0; }
  /// The variant of the present operation, the same on all ranks.
  [[nodiscard]] variant chosen() const noexcept { return variant_.chosen(); }

  /// Reads `bytes` at `offset` of a buffer of rank `who`: by loads where it is mapped here, else by the kernel.
  void fetch(int who, memory_reference from, std::size_t offset, void* to, std::size_t bytes,
             memory_access by = memory_access::automatic);
  /// The bounce buffer of rank `who`, for what its peers cannot load: one of two halves, used in turn.
  [[nodiscard]] std::byte* bounce_buffer_of(int who, std::size_t round) const noexcept {
    return world_->shared().staging(world_rank(who), lane_) + round % 2 * bounce_buffer_bytes();
  }
  /// Bytes of one half.
  [[nodiscard]] std::size_t bounce_buffer_bytes() const noexcept { return world_->shared().shape().staging_bytes / 2; }

 private:
  void publish_descriptor(const call_buffers& mine, world_status::clock::duration limit);
  [[nodiscard]] waiting until_moved(deadline& until) noexcept { return {this, &until, moved_bytes_}; }

  const address_map* memory_;
  rank_set peers_;
  bool reads_others_;
  variant_choice variant_;
  // Of the present operation.
  std::uint64_t waited_us_ = 0;  // when it was entered
  const void* own_input_ = nullptr;
  std::uint64_t flags_of_all_ = 0;  // bits of heads
  std::uint64_t flags_of_any_ = 0;
  std::size_t moved_bytes_ = 0;  // about
  world_status::clock::duration limit_{};
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/rendezvous/collective_endpoint.ipp"  // IWYU pragma: export
#endif
