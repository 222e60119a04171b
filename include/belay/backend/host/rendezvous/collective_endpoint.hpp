// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Rendezvous: larger operations, in which each rank publishes a descriptor of its buffers, waits for all and compares.
// Every rank may then use every other rank's buffers until all have exited.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "belay/backend/host/memory/address_map.hpp"
#include "belay/backend/host/rendezvous/eager_endpoint.hpp"
#include "belay/backend/host/tuning/variant_choice.hpp"
#include "belay/comm/reduction_arithmetic.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// One lane of one group, as one of its ranks sees it: all that a collective needs.
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
