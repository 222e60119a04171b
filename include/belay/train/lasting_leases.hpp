// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a run has leased for as long as it lasts: rows of its plan, the memory of each, what other ranks have of it, and
// what is given back meanwhile.
// IWYU pragma: private, include "belay/train/run.hpp"
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/device/tier.hpp"
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
  [[nodiscard]] const rank_shards* shares_of(std::size_t item) const noexcept;
  /// Leases of a tier for a purpose.
  [[nodiscard]] std::vector<lasting_lease> of(tier where_it_is, std::string_view purpose) const;

  /// A part of a lease is given back for some time, and used again; leased bytes of the row are those that are not.
  void vacate(const std::span<std::byte> part) noexcept { row_of(part) += leased_size(part.size()); }
  void occupy(const std::span<std::byte> part) noexcept { row_of(part) -= leased_size(part.size()); }
  [[nodiscard]] std::size_t live_bytes(std::size_t row) const noexcept;

 private:
  // What is no lease's, as a part of a file, is counted where nobody reads it.
  [[nodiscard]] std::size_t& row_of(const std::span<std::byte> part) noexcept;

  rank_plan rows_;
  std::vector<rank_shards> shards_;
  std::vector<lasting_lease> leases_;
  std::vector<std::size_t> vacated_;  // by row
  std::size_t elsewhere_ = 0;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/train/lasting_leases.ipp"  // IWYU pragma: export
#endif
