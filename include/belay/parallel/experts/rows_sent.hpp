// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Rows that travel between ranks which have a device each, as messages. A rank keeps the rows of its choices packed, in
// the order of experts. There, and in the owner's slot, those of one rank for one expert lie side by side, in the order
// of tokens: so a message is a range of each, nothing is packed twice, and what arrives is in its place. A kernel
// between the rank's tokens and its packed rows is the one that ranks with one memory run between tokens and slots.
//
// Counts go by the host, before the communication is started: each rank waits for its own, and gathers them. So both
// ends of a message compute its size, and neither sends rows for which the owner has no room.
// IWYU pragma: private, include "belay/parallel/experts.hpp"
#pragma once

#include <cstddef>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/experts/layout.hpp"
#include "belay/parallel/experts/rows_across.hpp"

namespace belay::inline BELAY_ABI {

/// Ranges of rows that a rank sends and receives in one dispatch, and the other way on its way back: of its packed
/// choices by expert [experts], and of its slot by source and local expert [ranks, local].
struct row_messages {
  std::vector<row_range> sent, received;
};

/// The messages of all dispatches that are not finished. One that has ended is used again: once there are enough,
/// nothing is allocated.
class row_message_store {
 public:
  /// For a dispatch, of so many ranges each way.
  [[nodiscard]] std::size_t take(std::size_t ranges) {
    if (free_.empty()) {
      all_.push_back({std::vector<row_range>(ranges), std::vector<row_range>(ranges)});
      free_.reserve(all_.size());
      return all_.size() - 1;
    }
    const std::size_t index = free_.back();
    free_.pop_back();
    return index;
  }
  void give_back(std::size_t index) noexcept { free_.push_back(index); }
  /// Ends all: what a step does when handles were lost.
  void reclaim() noexcept {
    free_.clear();
    for (std::size_t index = all_.size(); index-- > 0;) free_.push_back(index);
  }
  [[nodiscard]] row_messages& operator[](std::size_t index) noexcept { return all_[index]; }

 private:
  std::vector<row_messages> all_;
  std::vector<std::size_t> free_;
};

/// How peers come to each other's rows where they are sent: between this rank's packed rows and the owners' slots.
template <class T, class Moves>
struct peers_by_messages {
  /// Places are those of packed rows.
  static constexpr bool addressed = false;
  using places_type = fitted_places<places_of::packed_rows>;

  /// The scratch of the exchange, which knows the rows of each dispatch; the number of this dispatch in it; and the
  /// memory of packed rows and slot.
  Moves* moves;
  std::size_t dispatch;
  T* packed;
  T* slot;

  /// Packed rows go to the slots of their experts.
  template <class Calls>
  void to_experts(const Calls& calls, where at) const {
    moves->send_rows(calls, *this, p2p::direction::send, at);
  }
  /// Rows of slots go to where their ranks pack them.
  template <class Calls>
  void to_tokens(const Calls& calls, where at) const {
    moves->send_rows(calls, *this, p2p::direction::receive, at);
  }
};

}  // namespace belay::inline BELAY_ABI
