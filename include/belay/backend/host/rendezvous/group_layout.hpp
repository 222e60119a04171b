// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the ranks of one group share, laid out in the control block: its members, and for each lane their flags, count
// vectors and eager buffers, and a mailbox for each ordered pair.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstddef>
#include <cstdint>

#include "belay/backend/host/memory/control_block.hpp"
#include "belay/backend/host/p2p/mailbox.hpp"
#include "belay/backend/host/rendezvous/peer_flags.hpp"
#include "belay/backend/host/tuning/algorithm_rules.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Where a rank sleeps while its transfers wait for peers, which notify it.
struct alignas(cache_line_pair_bytes) p2p_doorbell : doorbell {};

/// The block of a group of `size` ranks, as this process has it mapped.
class group_layout {
 public:
  group_layout(std::byte* first, int size) noexcept : first_(first), size_(static_cast<std::size_t>(size)) {}

  [[nodiscard]] static std::size_t bytes_for(int size) noexcept {
    const auto n = static_cast<std::size_t>(size);
    return lane_offset(n, lane_count);
  }

  [[nodiscard]] std::int32_t* members() const noexcept { return reinterpret_cast<std::int32_t*>(first_); }
  [[nodiscard]] peer_flags<>* all_flags(lane which) const noexcept { return at<peer_flags<>>(which, 0); }
  /// Of each rank: two vectors with a count for each rank, for even operation numbers and for odd ones.
  [[nodiscard]] std::size_t* counts(lane which) const noexcept { return at<std::size_t>(which, counts_offset(size_)); }
  /// For the data of small operations that a flag line does not hold: two of each rank, used in turn, all as far apart.
  [[nodiscard]] std::byte* eager_buffers(lane which) const noexcept {
    return at<std::byte>(which, eager_buffers_offset(size_));
  }
  [[nodiscard]] std::size_t eager_buffer_stride_bytes() const noexcept { return eager_buffer_stride(size_); }
  [[nodiscard]] p2p_doorbell* doorbells(lane which) const noexcept {
    return at<p2p_doorbell>(which, doorbells_offset(size_));
  }
  [[nodiscard]] mailbox& mailbox_of(lane which, int from, int to) const noexcept {
    return *reinterpret_cast<mailbox*>(at<std::byte>(which, mailboxes_offset(size_)) +
                                       pair(from, to) * mailbox_bytes(size_));
  }
  /// The space behind a mailbox.
  [[nodiscard]] std::byte* piece(lane which, int from, int to) const noexcept {
    return reinterpret_cast<std::byte*>(&mailbox_of(which, from, to)) + sizeof(mailbox);
  }
  [[nodiscard]] std::size_t piece_bytes() const noexcept { return piece_bytes(size_); }

 private:
  [[nodiscard]] static constexpr std::size_t up(std::size_t bytes) noexcept {
    return (bytes + cache_line_pair_bytes - 1) / cache_line_pair_bytes * cache_line_pair_bytes;
  }
  // A processor reads ahead past the end of an eager buffer, where it would take the next operation's lines from their
  // writer.
  [[nodiscard]] static constexpr std::size_t eager_buffer_stride(std::size_t n) noexcept {
    return 2 * eager_buffer_bytes(static_cast<int>(n));
  }
  // A large group has many mailboxes.
  [[nodiscard]] static constexpr std::size_t piece_bytes(std::size_t n) noexcept {
    return n <= 4 ? 4096 : n <= 16 ? 512 : 64;
  }
  [[nodiscard]] static constexpr std::size_t mailbox_bytes(std::size_t n) noexcept {
    return sizeof(mailbox) + piece_bytes(n);
  }
  [[nodiscard]] static constexpr std::size_t counts_offset(std::size_t n) noexcept { return n * sizeof(peer_flags<>); }
  [[nodiscard]] static constexpr std::size_t doorbells_offset(std::size_t n) noexcept {
    return counts_offset(n) + up(n * n * 4 * sizeof(std::size_t));
  }
  [[nodiscard]] static constexpr std::size_t eager_buffers_offset(std::size_t n) noexcept {
    return doorbells_offset(n) + n * sizeof(p2p_doorbell);
  }
  [[nodiscard]] static constexpr std::size_t mailboxes_offset(std::size_t n) noexcept {
    return eager_buffers_offset(n) + n * 2 * eager_buffer_stride(n);
  }
  [[nodiscard]] static constexpr std::size_t lane_offset(std::size_t n, std::size_t which) noexcept {
    return up(n * sizeof(std::int32_t)) + which * up(mailboxes_offset(n) + n * n * mailbox_bytes(n));
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
