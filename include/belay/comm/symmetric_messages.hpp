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
    std::vector<std::uint64_t> sent, received(from.size());
    sent.reserve(to.size());
    std::vector<p2p> transfers;
    for (int peer : to) {
      sent.push_back(queues_[static_cast<std::size_t>(peer)].bytes.size());
      transfers.push_back(p2p::send(peer, std::span(&sent.back(), 1), lengths_tag));
    }
    for (std::size_t i = 0; i < from.size(); ++i) {
      transfers.push_back(p2p::receive(from[i], std::span(&received[i], 1), lengths_tag));
    }
    group.exchange(transfers, at);

    transfers.clear();
    std::vector<std::vector<std::byte>> arrived(from.size());
    for (int peer : to) {
      const std::vector<std::byte>& bytes = queues_[static_cast<std::size_t>(peer)].bytes;
      if (!bytes.empty()) transfers.push_back(p2p::send(peer, std::span(bytes), ranges_tag));
    }
    for (std::size_t i = 0; i < from.size(); ++i) {
      arrived[i].resize(static_cast<std::size_t>(received[i]));
      if (received[i] > 0) transfers.push_back(p2p::receive(from[i], std::span(arrived[i]), ranges_tag));
    }
    group.exchange(transfers, at);
    for (int peer : to) queues_[static_cast<std::size_t>(peer)] = queue{};
    for (std::size_t i = 0; i < from.size(); ++i) store(group, memory, capacity, from[i], arrived[i], at);
  }

 private:
  static constexpr std::size_t nowhere = static_cast<std::size_t>(-1);
  static constexpr int lengths_tag = 0x5e01;
  static constexpr int ranges_tag = 0x5e02;

  struct range {
    mirror_side side;
    std::uint64_t offset;
    std::uint64_t bytes;
  };
  struct queue {
    std::vector<std::byte> bytes;
    std::size_t last = nowhere;  // where the head of the last range is
  };

  static range read(const std::byte* from) noexcept {
    range out;
    std::memcpy(&out, from, sizeof out);
    return out;
  }

  template <class Group>
  static void store(const Group& group, const symmetric_region& memory, std::size_t capacity, int from,
                    std::span<const std::byte> message, where at) {
    for (std::size_t place = 0; place + sizeof(range) <= message.size();) {
      const range head = read(message.data() + place);
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
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/symmetric_messages.ipp"  // IWYU pragma: export
#endif
