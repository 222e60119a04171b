// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One lane of one group, as one of its ranks sees it: what eager rounds and rendezvous have in common. It begins
// operations, waits for peers until a deadline and says what went wrong.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "belay/backend/host/failure/world_status.hpp"
#include "belay/backend/host/rendezvous/call_descriptor.hpp"
#include "belay/backend/host/rendezvous/count_vectors.hpp"
#include "belay/backend/host/rendezvous/group_layout.hpp"
#include "belay/backend/host/rendezvous/lane_view.hpp"
#include "belay/backend/host/rendezvous/rendezvous.hpp"
#include "belay/backend/host/tuning/algorithm_rules.hpp"
#include "belay/comm/call_mismatch.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/comm/reduction_arithmetic.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

static_assert(peer_flags<>::flag_payload_bytes == flag_payload_bytes);

/// Allocates only when it is made.
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

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/rendezvous/lane_endpoint.ipp"  // IWYU pragma: export
#endif
