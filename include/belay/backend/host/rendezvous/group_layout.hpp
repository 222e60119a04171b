// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the ranks of one group share, laid out in the control block: who is in it, and for each lane the places where
// they meet, their count vectors, and a letter box for each ordered pair.
#pragma once

#include <cstddef>
#include <cstdint>

#include "belay/backend/host/memory/control_block.hpp"
#include "belay/backend/host/p2p/mailbox_state.hpp"
#include "belay/backend/host/p2p/transfer.hpp"
#include "belay/backend/host/rendezvous/peer_flags.hpp"
#include "belay/backend/host/tuning/algorithm.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// From one rank to another; the sender writes all but the flap while it is empty. What the receiver cannot see
/// comes in pieces, in the space behind the box.
struct alignas(64) mailbox {
  mailbox_flap<> state;
  std::int32_t tag = 0;
  std::uint64_t reference = 0;  // where the bytes are
  transfer_step step;
  std::uint16_t site = 0;
};

/// Where a rank sleeps while its transfers wait; its peers ring.
struct alignas(cache_line_pair_bytes) p2p_doorbell {
  doorbell ring;
};

/// The block of a group of `size` ranks, as this process sees it.
class group_layout {
 public:
  group_layout(std::byte* first, int size) noexcept : first_(first), size_(static_cast<std::size_t>(size)) {}

  [[nodiscard]] static std::size_t bytes_for(int size) noexcept {
    const auto n = static_cast<std::size_t>(size);
    return lane_offset(n, lane_count);
  }

  [[nodiscard]] std::int32_t* members() const noexcept { return reinterpret_cast<std::int32_t*>(first_); }
  [[nodiscard]] peer_flags<>* all_flags(lane which) const noexcept { return at<peer_flags<>>(which, 0); }
  /// Of each rank: two turns of two vectors of a count for each rank.
  [[nodiscard]] std::size_t* counts(lane which) const noexcept { return at<std::size_t>(which, counts_offset(size_)); }
  /// Where ranks put what they bring to a small operation and a line does not hold: of each rank two, one for each of
  /// two turns, all as far apart.
  [[nodiscard]] std::byte* eager_buffers(lane which) const noexcept {
    return at<std::byte>(which, eager_buffers_offset(size_));
  }
  [[nodiscard]] std::size_t eager_buffer_stride_bytes() const noexcept { return eager_buffer_stride(size_); }
  [[nodiscard]] p2p_doorbell* desks(lane which) const noexcept { return at<p2p_doorbell>(which, desks_offset(size_)); }
  [[nodiscard]] mailbox& box(lane which, int from, int to) const noexcept {
    return *reinterpret_cast<mailbox*>(at<std::byte>(which, boxes_offset(size_)) + pair(from, to) * box_bytes(size_));
  }
  /// The room behind a box.
  [[nodiscard]] std::byte* piece(lane which, int from, int to) const noexcept {
    return reinterpret_cast<std::byte*>(&box(which, from, to)) + sizeof(mailbox);
  }
  [[nodiscard]] std::size_t piece_room() const noexcept { return piece_room(size_); }

 private:
  [[nodiscard]] static constexpr std::size_t up(std::size_t bytes) noexcept {
    return (bytes + cache_line_pair_bytes - 1) / cache_line_pair_bytes * cache_line_pair_bytes;
  }
  // Who reads a page is read ahead for, past its end, where it would take the next turn's lines from their writer.
  [[nodiscard]] static constexpr std::size_t eager_buffer_stride(std::size_t n) noexcept {
    return 2 * eager_buffer_bytes(static_cast<int>(n));
  }
  // Boxes are many in a large group.
  [[nodiscard]] static constexpr std::size_t piece_room(std::size_t n) noexcept {
    return n <= 4 ? 4096 : n <= 16 ? 512 : 64;
  }
  [[nodiscard]] static constexpr std::size_t box_bytes(std::size_t n) noexcept {
    return sizeof(mailbox) + piece_room(n);
  }
  [[nodiscard]] static constexpr std::size_t counts_offset(std::size_t n) noexcept { return n * sizeof(peer_flags<>); }
  [[nodiscard]] static constexpr std::size_t desks_offset(std::size_t n) noexcept {
    return counts_offset(n) + up(n * n * 4 * sizeof(std::size_t));
  }
  [[nodiscard]] static constexpr std::size_t eager_buffers_offset(std::size_t n) noexcept {
    return desks_offset(n) + n * sizeof(p2p_doorbell);
  }
  [[nodiscard]] static constexpr std::size_t boxes_offset(std::size_t n) noexcept {
    return eager_buffers_offset(n) + n * 2 * eager_buffer_stride(n);
  }
  [[nodiscard]] static constexpr std::size_t lane_offset(std::size_t n, std::size_t which) noexcept {
    return up(n * sizeof(std::int32_t)) + which * up(boxes_offset(n) + n * n * box_bytes(n));
  }
  [[nodiscard]] std::size_t pair(int from, int to) const noexcept {
    return static_cast<std::size_t>(from) * size_ + static_cast<std::size_t>(to);
  }
  template <class T>
  [[nodiscard]] T* at(lane which, std::size_t offset) const noexcept {
    return reinterpret_cast<T*>(first_ + lane_offset(size_, index(which)) + offset);
  }

  std::byte* first_;
  std::size_t size_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
