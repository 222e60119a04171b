// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The memory of a run. Before it: the sizes of its regions, and orders to follow, as a rehearsal has found them. While
// it lasts: rows of its plan, the memory of each, what other ranks have of it, and what is given back meanwhile.
// IWYU pragma: private, include "belay/train/run.hpp"
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/device/memory.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/device/stream_policy.hpp"
#include "belay/device/tier.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/parallel/gathers/order.hpp"
#include "belay/step/phase.hpp"
#include "belay/step/weight_notes.hpp"
#include "belay/train/plan.hpp"

namespace belay::inline BELAY_ABI {

/// A lease for as long as the run.
struct lasting_lease {
  std::span<std::byte> memory;
  std::size_t item;  // its number in the plan
};
/// A lease of which ranks have shards.
struct rank_shards {
  std::size_t item;                // its number in the plan
  std::vector<std::size_t> bytes;  // of each rank of the world
  std::size_t reached;             // address space in symmetric memory; 0: it is not there
};

/// The leases of a run that last as long as it: rows of its plan and the memory of each.
class lasting_leases {
 public:
  /// A row of the plan, and the memory that is it, where it is not a file's or in symmetric memory.
  void add(plan_item item, std::span<std::byte> memory = {});
  /// The next row is of a lease of which ranks have shards: `bytes_of(rank)` each.
  template <class BytesOf>
  void add_shards(int ranks, const BytesOf& bytes_of) {
    rank_shards all{rows_.items().size(), {}, 0};
    for (int rank = 0; rank < ranks; ++rank) all.bytes.push_back(leased_size(bytes_of(rank)));
    shards_.push_back(std::move(all));
  }
  /// The last such row is in symmetric memory, of so many bytes on each rank.
  void note_reach(std::size_t bytes) noexcept { shards_.back().reached = bytes; }

  [[nodiscard]] const rank_plan& rows() const noexcept { return rows_; }
  /// Of row `item` what ranks have; null where they have no shards.
  [[nodiscard]] const rank_shards* shards_of(std::size_t item) const noexcept;
  /// Leases of a tier for a purpose.
  [[nodiscard]] std::vector<lasting_lease> of(tier where_it_is, std::string_view purpose) const;

  /// A part of a lease is given back for some time, and used again; leased bytes of the row are those that are not.
  void vacate(const std::span<std::byte> part) noexcept { row_of(part) += leased_size(part.size()); }
  void occupy(const std::span<std::byte> part) noexcept { row_of(part) -= leased_size(part.size()); }
  [[nodiscard]] std::size_t live_bytes(std::size_t row) const noexcept;

 private:
  // Bytes that are no lease's, as a part of a file, are counted where nobody reads it.
  [[nodiscard]] std::size_t& row_of(const std::span<std::byte> part) noexcept;

  rank_plan rows_;
  std::vector<rank_shards> shards_;
  std::vector<lasting_lease> leases_;
  std::vector<std::size_t> vacated_;  // by row
  std::size_t elsewhere_ = 0;
};

/// Bytes of the regions of one rank.
struct run_memory {
  std::size_t activations = 0;
  std::vector<std::size_t> windows;                  // symmetric memory, in the order in which it is asked for
  std::vector<std::size_t> of_steps;                 // memory of steps alone, in the order in which it is asked for
  std::vector<gather_plan> gathers;                  // in which order layers are, by store that divides parameters
  std::vector<call_order> returns;                   // in which order calls are brought back, by who offloads them
  std::array<std::size_t, tier_count> persistent{};  // by tier: what lives as long as the run
  std::size_t workspace = 0;                         // of the kit's products, which is a part of that
  bool owed = false;                                 // whether owed backwards keep memory of the trainer's own
  std::size_t notes = 0;                             // of weight halves, at a time
  std::size_t added_at_once = 0;                     // calls of a step whose first half was the second, too
  computes_on computes = computes_on::host;          // what the body was rehearsed for
};

/// The leases that were planned for a rank, and the regions for them.
struct planned_run {
  rank_plan plan;
  run_memory memory;
};

inline constexpr const char* workspace_row = "workspace of products";
/// Plans `wanted` bytes that a kit's products work in, which the run that is rehearsed leases first.
inline void add_workspace(planned_run& to, std::size_t wanted) {
  to.memory.workspace = wanted;
  const std::size_t bytes = leased_size(wanted);
  if (bytes == 0) return;
  to.plan.add(tier::device, workspace_row, bytes);
  to.memory.persistent[static_cast<std::size_t>(tier::device)] += bytes;
}

inline constexpr const char* notes_row = "notes of weight gradients";
/// Plans as many notes of backwards in two halves as a rehearsal has found, which the run leases.
inline void add_notes(planned_run& to, const weight_note_pool& found) {
  to.memory.notes = found.peak();
  to.memory.added_at_once = found.added_at_once();
  const std::size_t bytes = leased_size(weight_note_pool::bytes_of(to.memory.notes));
  if (bytes == 0) return;
  to.plan.add(tier::host, notes_row, bytes);
  to.memory.persistent[static_cast<std::size_t>(tier::host)] += bytes;
}

/// Widens the workspace of products in a plan to at least `wanted` bytes: a rehearsal knows less of it than the kit
/// that will run.
inline void widen_workspace(planned_run& to, std::size_t wanted) {
  if (to.memory.workspace >= wanted) return;
  rank_plan others;
  for (const plan_item& item : to.plan.items())
    if (item.purpose != workspace_row) others.add(item);
  to.plan = std::move(others);
  to.memory.persistent[static_cast<std::size_t>(tier::device)] -= leased_size(to.memory.workspace);
  add_workspace(to, wanted);
}

/// A region of `bytes` in a tier. In tier file it has addresses alone.
template <class Memory>
[[nodiscard]] Memory memory_in(tier where_it_is, std::size_t bytes) {
  if constexpr (std::constructible_from<Memory, reserved_addresses&&>)
    if (where_it_is == tier::file) return Memory(reserved_addresses(bytes));
  return Memory{bytes};
}

/// An engine whose kit has a stream of a policy that is chosen when the program runs.
template <class Engine>
concept has_stream_settings = std::constructible_from<typename Engine::kit_type, const stream_settings&, int>;

/// Where a run gets its memory and its engine. `memory` and `kit` are for memory that is not made of a size alone, such
/// as a device's: the rank of such a world has them.
template <class Engine>
struct run_parts {
  using memory_type = typename Engine::memory_type;
  using kit_type = typename Engine::kit_type;

  std::function<memory_type(tier, std::size_t)> memory = {};
  std::function<kit_type()> kit = {};

  bool addresses_only = false;  // in a rehearsal

  [[nodiscard]] memory_type region(tier where_it_is, std::size_t bytes) const {
    if constexpr (std::constructible_from<memory_type, reserved_addresses&&>)
      if (addresses_only) return memory_type(reserved_addresses(bytes));
    if constexpr (std::constructible_from<memory_type, std::size_t>)
      return memory_in<memory_type>(where_it_is, bytes);
    else
      return memory(where_it_is, bytes);
  }
  void make(std::optional<Engine>& engine, std::size_t activations, tier_meter& meter, const stream_settings& streams,
            int rank) const {
    if constexpr (!std::constructible_from<memory_type, std::size_t>)
      engine.emplace(region(tier::device, activations), meter, kit());
    else if constexpr (has_stream_settings<Engine>)
      engine.emplace(region(tier::device, activations), meter, streams, rank);
    else
      engine.emplace(memory_type{activations}, meter);
  }
  /// A region of `bytes` in a tier, of zeros, as pages of the host are. Leased sizes are whole words.
  [[nodiscard]] memory_type zeroed_region([[maybe_unused]] Engine& engine, tier where_it_is, std::size_t bytes) const {
    memory_type out = region(where_it_is, bytes);
    if constexpr (!std::constructible_from<memory_type, std::size_t>) {
      if (where_it_is != tier::device) return out;
      engine.kit().each(bytes / sizeof(std::uint64_t),
                        kernel::fill<std::uint64_t>{reinterpret_cast<std::uint64_t*>(out.data()), 0});
      engine.synchronize();
    }
    return out;
  }
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/train/run_memory.ipp"  // IWYU pragma: export
#endif
