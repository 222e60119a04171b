// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Eager rounds: operations of up to 2 KiB of each rank, whose data lies in flag lines or eager buffers. Every rank
// publishes its own and waits for all others'; there is nothing to exit from.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "belay/backend/host/rendezvous/call_descriptor.hpp"
#include "belay/backend/host/rendezvous/lane_endpoint.hpp"
#include "belay/comm/reduction_arithmetic.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Whether an endpoint compares fingerprints, writes the recorder and keeps deadlines. `unguarded` leaves these out: it
/// is for a benchmark, which shows what they cost.
struct guarded {};
struct unguarded {};

/// The eager rounds of one lane of one group.
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
    recorder_->leave(until.waited_us());
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
    recorder_->leave(until.waited_us());
  }
  void spin_for_flag_lines(std::uint32_t word) const noexcept {
    static_cast<void>(rendezvous_.await_flag_lines(word, [](int, auto done) {
      while (!done(std::memory_order_acquire)) relax();
      return true;
    }));
  }

  peer_payloads payloads_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
