// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Symmetric memory whose ranks cannot address each other's: each has a mirror of every peer's part, and ranges
// travel between a part and its mirrors in messages. What is put is copied at once and sent with the next signal,
// so the receiver's memory changes only while it waits for that.
// IWYU pragma: private, include "belay/comm.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/symmetric_region.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// All ranks of a group but this one.
template <class Group>
[[nodiscard]] std::vector<int> peers_of(const Group& group) {
  std::vector<int> out;
  for (int peer = 0; peer < group.size(); ++peer)
    if (peer != layout_rank(group)) out.push_back(peer);
  return out;
}

/// Which copy of a range a message is for.
enum class mirror_side : std::uint64_t {
  part,    // the receiver's own part
  mirror,  // the receiver's mirror of the sender's part
};

/// Ranges of one rank's symmetric memory on their way to others.
class put_queue {
 public:
  explicit put_queue(int ranks) : queues_(static_cast<std::size_t>(ranks)) {}

  /// Queues `bytes` from `data` for `peer`, to be stored at `offset` of that side.
  void push(int peer, mirror_side side, std::size_t offset, const std::byte* data, std::size_t bytes);

  /// Sends what is queued for the ranks `to` and stores what comes from the ranks `from`; each of those calls the
  /// same with this rank on its other list. Throws like an exchange.
  template <class Group>
  void signal(const Group& group, const symmetric_region& memory, std::size_t capacity, std::span<const int> to,
              std::span<const int> from, where at) {
    transfers_.clear();
    for (int peer : to) {
      queue& out = queue_of(peer);
      out.sent = out.bytes.size();
      transfers_.push_back(p2p::send(peer, std::span(&out.sent, 1), lengths_tag));
    }
    for (int peer : from) transfers_.push_back(p2p::receive(peer, std::span(&queue_of(peer).received, 1), lengths_tag));
    group.exchange(transfers_, at);

    transfers_.clear();
    for (int peer : to) {
      const queue& out = queue_of(peer);
      if (out.sent > 0) transfers_.push_back(p2p::send(peer, std::span(out.bytes), ranges_tag));
    }
    for (int peer : from) {
      queue& in = queue_of(peer);
      if (in.received > in.arrived.size()) in.arrived.resize(static_cast<std::size_t>(in.received));
      if (in.received > 0) transfers_.push_back(p2p::receive(peer, in.message(), ranges_tag));
    }
    group.exchange(transfers_, at);
    for (int peer : to) {
      queue_of(peer).bytes.clear();
      queue_of(peer).last = nowhere;
    }
    for (int peer : from) store(group, memory, capacity, peer, queue_of(peer).message(), at);
  }

 private:
  static constexpr std::size_t nowhere = static_cast<std::size_t>(-1);
  static constexpr int lengths_tag = 0x5e01;
  static constexpr int ranges_tag = 0x5e02;

  struct range_header {
    mirror_side side;
    std::uint64_t offset;
    std::uint64_t bytes;
  };
  // To and from one peer. Its memory stays as large as its longest message.
  struct queue {
    std::vector<std::byte> bytes, arrived;
    std::size_t last = nowhere;  // where the head of the last range is
    std::uint64_t sent = 0, received = 0;

    [[nodiscard]] std::span<std::byte> message() noexcept {
      return std::span(arrived).first(static_cast<std::size_t>(received));
    }
  };
  [[nodiscard]] queue& queue_of(int peer) noexcept { return queues_[static_cast<std::size_t>(peer)]; }

  static range_header read(const std::byte* from) noexcept {
    range_header out;
    std::memcpy(&out, from, sizeof out);
    return out;
  }

  template <class Group>
  static void store(const Group& group, const symmetric_region& memory, std::size_t capacity, int from,
                    std::span<const std::byte> message, where at) {
    for (std::size_t place = 0; place + sizeof(range_header) <= message.size();) {
      const range_header head = read(message.data() + place);
      place += sizeof head;
      if (head.bytes > message.size() - place || head.offset > capacity || head.bytes > capacity - head.offset) {
        throw usage_error("rank " + std::to_string(from) + " put " + std::to_string(head.bytes) + " bytes at " +
                              std::to_string(head.offset) + " of symmetric memory of " + std::to_string(capacity),
                          at);
      }
      std::byte* const part = memory.at(head.side == mirror_side::part ? group.rank() : from);
      std::memcpy(part + head.offset, message.data() + place, head.bytes);
      place += head.bytes;
    }
  }

  std::vector<queue> queues_;
  std::vector<p2p> transfers_;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/symmetric_messages.ipp"  // IWYU pragma: export
#endif
