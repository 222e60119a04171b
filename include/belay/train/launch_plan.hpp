// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Memory that a launch may use, the plan of its ranks, each of which has rehearsed itself alone, and the refusal of one
// that does not fit: budgets, what the machine has left, and what devices have.
// IWYU pragma: private, include "belay/train/launch.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/comm/rehearsal.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/available_memory.hpp"
#include "belay/device/stream_policy.hpp"
#include "belay/device/tier.hpp"
#include "belay/kernel/product.hpp"
#include "belay/train/plan.hpp"
#include "belay/train/run_memory.hpp"

namespace belay::inline BELAY_ABI {

/// Whether a fault of a body in the addresses of its rehearsal is explained, with the layer's name. Only a handler of
/// SIGSEGV can do that; it is installed while a rehearsed step is open.
enum class fault_explanation : std::uint8_t { none, by_handler };

/// The limits of a launch: a budget a tier, what the machine has left, and when kernels run.
struct launch_options {
  belay::budget budget = {};                   // of each rank; unlimited by default
  std::size_t available = available_memory();  // of this machine, for the ranks on it
  /// Advice that is shown with a refusal: what would need less memory of a tier.
  std::function<std::vector<std::string>(tier)> advice = {};
  stream_choice streams = {};  // when kernels run: at once unless chosen otherwise
  /// The products of kits of the host, the same on all ranks: the blocked loop, unless a BLAS is named. A device's kit
  /// has its own.
  host_products products = {};
  /// Called by rank 0 of ranks that have devices, when their runs are made.
  std::function<void(std::span<const device_usage>)> measured = {};
  /// The explanation of faults in the rehearsal. None: a checked build names this option before it rehearses, once.
  fault_explanation explain_faults = fault_explanation::none;
};

/// In a checked build, where `faults` are not explained, one line on standard error names the option that does it: once
/// a process, and of those that a launcher has started in that of rank 0 alone.
void announce_rehearsal(fault_explanation faults);

/// The rows of a plan that say what the communication of a rank takes of a device: of ranks that share one to the byte,
/// over NCCL as estimated.
inline constexpr const char* shared_communication_row = "communication";
inline constexpr const char* communication_row = "communication, estimated";
inline constexpr const char* unordered_communication_row = "communication, estimated; it adds in any order";
/// The bytes of a device that the communication of each rank takes, and the row of a plan that says so.
struct estimated_communication {
  std::size_t bytes = 0;
  const char* row = communication_row;
};

/// The plan of a body on all ranks, and the regions that its run needs.
struct rehearsal_result {
  /// The memory that each rank will need.
  belay::plan plan;
  std::vector<run_memory> memory;  // by rank
  mesh_record meshes;              // which groups the bodies asked for: a run makes them with its meshes
  rehearsal::call_sizes calls;     // how large the collectives are that they called there
  std::size_t rehearsed = 0;       // ranks of which the body was run, one of each kind

  /// The memory that ranks of the world it was rehearsed for communicate over; of no world none.
  estimated_communication communication = {};

  /// A table of the bytes that each rank leases at its peak, and of those that it communicates over where the world is
  /// known, held against the options' budgets; a last line has the bytes of address range that gaps between leases add.
  [[nodiscard]] std::string text(const launch_options& options = {}) const;
};

/// Whose memory a plan is held against: that of a machine whose ranks have all tiers there, that of a device, or that
/// of the machine beside it.
enum class memory_owner : std::uint8_t { machine, device, machine_beside_device };

/// The bytes that devices have left for the ranks of a launch. Without a device, the machine has all tiers.
struct device_room {
  /// The ranks that this room is for, and its bytes: of one device that all ranks share, or by rank, once that has been
  /// measured.
  enum class of : std::uint8_t { no_rank, all_ranks, each_rank };
  of whose = of::no_rank;
  std::size_t shared = 0;
  std::vector<std::size_t> by_rank = {};
};

/// The plan with a row for that communication in tier device: budgets count it, comparisons with measured memory do
/// not.
[[nodiscard]] BELAY_DECL rehearsal_result priced(const rehearsal_result& planned,
                                                 const estimated_communication& communication);

/// The bytes that a rank leases of the owner's memory at its peak; of files only those in memory; of a device what the
/// regions take, without the row of communication.
[[nodiscard]] BELAY_DECL checked_size memory_of(const rank_plan& plan,
                                                memory_owner whose = memory_owner::machine) noexcept;

/// Throws plan_refused where this machine's ranks need more than `available`.
BELAY_DECL void expect_room(const rehearsal_result& planned, const launch_options& options, int ranks_here,
                            memory_owner whose, std::size_t available, where at);
/// Throws plan_refused where a rank needs more of its device than that has left.
BELAY_DECL void expect_devices(const rehearsal_result& planned, const launch_options& options,
                               const std::vector<std::size_t>& left, where at);
/// Throws plan_refused, with the table and what would help, where a rank's plan is over its budget, or those of this
/// machine's ranks are more than the machine has left, or than their devices have.
BELAY_DECL void expect_fits(const rehearsal_result& planned, const launch_options& options, int ranks_here, where at,
                            const device_room& devices = {});

/// A plan as words: the number of items; of each its tier, bytes, capacity, where the bytes of a file are, and its
/// purpose with its length.
[[nodiscard]] inline std::vector<std::uint64_t> words_of(const rank_plan& plan) {
  std::vector<std::uint64_t> words{plan.items().size()};
  for (const plan_item& item : plan.items()) {
    words.insert(words.end(), {static_cast<std::uint64_t>(item.where_it_is), item.bytes, item.capacity,
                               static_cast<std::uint64_t>(item.of_file), std::uint64_t{item.purpose.size()}});
    for (char letter : item.purpose) words.push_back(static_cast<unsigned char>(letter));
  }
  return words;
}
/// The plan that `words` begin with.
[[nodiscard]] inline rank_plan plan_of(std::span<const std::uint64_t> words) {
  rank_plan plan;
  std::size_t next = 1;
  for (std::uint64_t item = 0; item < words[0]; ++item) {
    const auto head = words.subspan(next, 5);
    std::string purpose;
    for (std::uint64_t letter : words.subspan(next + 5, head[4])) purpose += static_cast<char>(letter);
    plan.add({static_cast<tier>(head[0]), std::move(purpose), head[1], head[2], static_cast<file_bytes>(head[3])});
    next += 5 + head[4];
  }
  return plan;
}

/// Every rank's plan, in rank order. Collective over the group.
template <communicator Group>
requires can_all_gather<Group, std::uint64_t>
[[nodiscard]] std::vector<rank_plan> exchanged_plans(const Group& group, const rank_plan& own, where at) {
  std::vector<std::uint64_t> mine = words_of(own);
  std::uint64_t longest[1] = {mine.size()};
  group.all_reduce(std::span<std::uint64_t>(longest), maximum, at);
  mine.resize(longest[0]);
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(group.size()));
  group.all_gather(std::span<const std::uint64_t>(mine), std::span<std::uint64_t>(all), at);
  std::vector<rank_plan> plans;
  for (std::size_t first = 0; first < all.size(); first += mine.size())
    plans.push_back(plan_of(std::span<const std::uint64_t>(all).subspan(first, mine.size())));
  return plans;
}

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/train/launch_plan.ipp"  // IWYU pragma: export
#endif
