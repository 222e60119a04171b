// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Rows of a dispatch as kernels of a device: on one rank, between ranks that share a device, and between ranks that
// have one each.
//
// On one rank counts, offsets and places are made by the kit, and rows are moved by row_kernels.hpp.
//
// Between ranks which share a device they travel as communications queue them: kernels that address all ranks'
// slots, before or after a barrier of the group, which hands over events. Counts alone go by the host: a rank's are
// there when all that it has queued before is over, and its peers wait for them. So no row is written where a peer
// still reads. On one rank the same kernels join the compute stream.
//
// Between ranks which have a device each they travel as messages. A rank keeps the rows of its choices packed, in
// the order of experts. There, and in the owner's slot, those of one rank for one expert lie side by side, in the order
// of tokens: so a message is a range of each, nothing is packed twice, and what arrives is in its place. A kernel
// between the rank's tokens and its packed rows is the one that ranks with one memory run between tokens and slots.
//
// Counts go by the host, before the communication is started: each rank waits for its own, and gathers them. So both
// ends of a message compute its size, and neither sends rows for which the owner has no room.
// IWYU pragma: private, include "belay/parallel/experts.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/device/kit.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/findings.hpp"
#include "belay/parallel/experts/layout.hpp"
#include "belay/parallel/experts/row_kernels.hpp"
#include "belay/parallel/routing.hpp"

namespace belay::inline BELAY_ABI {

/// Whether the frame's kit moves rows of experts that are here by kernels.
template <class Frame>
concept moves_rows_by_kernels = sorting_kit<std::remove_cvref_t<decltype(std::declval<Frame&>().kit())>>;

/// Queues the sort of a rank's choices: `places` is where each comes in the order of experts.
template <class Frame>
void sort_choices(Frame& frame, view<const std::int32_t, 2> choices, std::size_t experts,
                  view<std::int32_t, 2> places) {
  frame.kit().sort({choices.data(), {choices.size()}}, experts, {places.data(), {places.size()}});
}

/// Offsets of experts from the sums of counts, up to the capacity. The last is that of all `selections`.
struct offsets_within {
  /// The offsets [experts + 1], which are cut, the experts, all selections, and the capacity.
  std::size_t* offsets;
  std::size_t experts;
  std::size_t selections;
  std::size_t capacity;
  /// Offset i.
  BELAY_HD void operator()(std::size_t i) const noexcept {
    const std::size_t first = i == experts ? selections : offsets[i];
    offsets[i] = first < capacity ? first : capacity;
  }
};
/// Places beyond the capacity are none.
struct places_within {
  /// The places, and the capacity.
  std::int32_t* places;
  std::size_t capacity;
  /// Place i.
  BELAY_HD void operator()(std::size_t i) const noexcept {
    if (static_cast<std::size_t>(places[i]) >= capacity) places[i] = no_place;
  }
};

/// Queues the rest of a dispatch: global counts, offsets, places that there is room for, and the tokens' rows to their
/// experts. What there was no room for is noted.
template <class Frame, class Dispatch>
void dispatch_here(Frame& frame, const Dispatch& of) {
  const auto& [places, offsets, shifts, capacity, found] = of.counted;
  const std::size_t experts = of.counts.size();
  frame.each(experts, kernel::copy<std::int64_t>{of.counts.data(), of.global_counts});
  // Sums of counts are not negative, so they are the same numbers without a sign.
  frame.kit().scan(of.counts, {reinterpret_cast<std::int64_t*>(offsets), {experts}});
  frame.each(experts + 1, offsets_within{offsets, experts, of.choices, capacity});
  frame.each(of.choices, places_within{places, capacity});
  if (of.choices > capacity) frame.each(1, noted_rows{{found, {}}, of.choices});
  frame.teams(of.choices, of.kernel);
}

/// Which places of rows a dispatch has in the end: of slots, or of a rank's packed rows.
enum class places_of : std::uint8_t { expert_slots, packed_rows };

/// A choice's place among its rank's rows, in the order of experts, and that in the slot of its expert, `shifts`
/// [experts] further on: the latter is kept of slots, the former of packed rows. Where that of the slot is beyond the
/// capacity, there is none.
template <places_of Which>
struct fitted_places {
  /// The places, the choices, how far those of each expert go, and the capacity.
  std::int32_t* places;
  const std::int32_t* choices;
  const std::int32_t* shifts;
  std::size_t capacity;
  /// Place i.
  BELAY_HD void operator()(std::size_t i) const noexcept {
    const std::int64_t place = std::int64_t{places[i]} + shifts[choices[i]];
    if (place >= static_cast<std::int64_t>(capacity))
      places[i] = no_place;
    else if constexpr (Which == places_of::expert_slots)
      places[i] = static_cast<std::int32_t>(place);
  }
};

/// How peers come to each other's rows where a device addresses all of them.
struct addressed_peers {
  /// Places are those of slots.
  static constexpr bool addressed = true;
  using places_type = fitted_places<places_of::expert_slots>;

  /// Rows that were written to slots are there.
  template <class Calls>
  void to_experts(const Calls& calls, where at) const {
    calls.barrier(at);
  }
  /// Rows of slots may be read.
  template <class Calls>
  void to_tokens(const Calls& calls, where at) const {
    calls.barrier(at);
  }
};

/// The counts and places of a dispatch in memory of a device, beside its routing.
struct dispatch_counts {
  /// Places among this rank's choices [rows, k], in the order of experts, which become those in slots; offsets [local +
  /// 1] and shifts [experts], to write; rows that there is room for; the step's findings, or null.
  std::int32_t* places;
  std::size_t* offsets;
  std::int32_t* shifts;
  std::size_t capacity;
  kernel::findings_record* found;
};

/// A dispatch: the ranks agree on counts, then this rank's rows go to the slots of their experts. `moves` has what the
/// host needs for it.
template <class T, class Moves, class Peers>
struct dispatched_across {
  /// The scratch of the exchange, the counts of choices and how many choices there are, the kernel of the rows, and how
  /// they travel.
  Moves* moves;
  dispatch_counts counted;
  view<const std::int64_t, 1> counts;
  std::int64_t* global_counts;
  std::size_t choices;
  pushed_rows<T> kernel;
  Peers peers;
  where at;

  /// Before the communication that begins as `how` says, where rows are sent.
  template <class Group>
    requires(!Peers::addressed)
  void prepare(const Group& group, const start_order& how) const {
    moves->count_to_send(group, *this, how);
  }
  /// In a communication.
  template <class Calls>
  void operator()(const Calls& calls) const {
    if constexpr (Peers::addressed) moves->count_on_device(calls, *this);
    moves->place_counts(calls, *this);
    using places_type = typename Peers::places_type;
    calls.each(choices, places_type{counted.places, kernel.rows.choices, counted.shifts, counted.capacity});
    calls.teams(choices, kernel);
    peers.to_experts(calls, at);
  }
  /// Where all experts are on this rank.
  template <class Frame>
  void here(Frame& frame) const {
    moves->note_needed(choices);
    dispatch_here(frame, *this);
  }
};

/// Whether the host does a part of `Work` before its communication is started.
template <class Work, class Group>
concept prepared_before =
    requires(const Work& work, const Group& group, const start_order& how) { work.prepare(group, how); };

/// `kernel` for so many rows, then what all ranks have done so is there.
template <class Kernel, class Peers>
struct before_peers {
  /// The kernel, how often, and how rows travel.
  Kernel kernel;
  std::size_t count;
  Peers peers;
  where at;

  /// In a communication, and where all experts are on this rank.
  template <class Calls>
  void operator()(const Calls& calls) const {
    calls.teams(count, kernel);
    peers.to_experts(calls, at);
  }
  template <class Frame>
  void here(Frame& frame) const {
    frame.teams(count, kernel);
  }
};
/// Rows that any rank has moved before are there, then `kernel` runs for `count` rows.
template <class Kernel, class Peers>
struct after_peers {
  /// The kernel, how often, and how rows travel.
  Kernel kernel;
  std::size_t count;
  Peers peers;
  where at;

  /// In a communication, and where all experts are on this rank.
  template <class Calls>
  void operator()(const Calls& calls) const {
    peers.to_tokens(calls, at);
    calls.teams(count, kernel);
  }
  template <class Frame>
  void here(Frame& frame) const {
    frame.teams(count, kernel);
  }
};

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
