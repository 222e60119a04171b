// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Rows that travel between ranks which share a device, as communications queue them: kernels that address all ranks'
// slots, before or after a barrier of the group, which hands over events. Counts alone go by the host: a rank's are
// there when all that it has queued before is over, and its peers wait for them. So no row is written where a peer
// still reads. On one rank the same kernels join the compute stream.
// IWYU pragma: private, include "belay/parallel/experts.hpp"
#pragma once

#include <cstddef>
#include <cstdint>

#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/kernel/findings.hpp"
#include "belay/parallel/experts/layout.hpp"
#include "belay/parallel/experts/row_kernels.hpp"
#include "belay/parallel/experts/rows_here.hpp"

namespace belay::inline BELAY_ABI {

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
concept prepared_before = requires(const Work& work, const Group& group, const start_order& how) {
  work.prepare(group, how);
};

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

}  // namespace belay::inline BELAY_ABI
