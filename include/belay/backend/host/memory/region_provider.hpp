// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The source of a group's symmetric memory. Among threads one rank maps it and the others use the same addresses. Among
// processes the coordinator keeps a segment, and each rank maps it for itself.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstddef>
#include <cstdint>

#include "belay/backend/host/memory/address_map.hpp"
#include "belay/comm/symmetric_region.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// One rank's source of regions. Lives as long as any region that came from it.
class region_provider {
 public:
  explicit region_provider(address_space space) noexcept : memory_(space) {}
  region_provider(const region_provider&) = delete;
  region_provider& operator=(const region_provider&) = delete;
  virtual ~region_provider() = default;

  [[nodiscard]] const address_map& memory() const noexcept { return memory_; }

  /// How the first rank of a group tells the others of a region that it has made.
  struct ticket {
    std::uint64_t region = 0;  // among threads the address of the first rank's handle
    std::uint64_t bytes = 0;   // that were not to be had; 0: it was made
    std::uint64_t available = 0;
  };

  /// Memory of `bytes` for each of `ranks` ranks. Throws budget_error.
  [[nodiscard]] virtual symmetric_region make(int ranks, std::size_t bytes, where at) = 0;
  /// All of `who` have opened it.
  void share(const symmetric_region& made, const rank_set& who) noexcept { memory_.share(made.at(0), who); }
  /// For the others, of what `make` has returned to the first rank.
  [[nodiscard]] virtual ticket ticket_for(const symmetric_region& made) const = 0;
  [[nodiscard]] virtual symmetric_region open(const ticket& from, int ranks, std::size_t bytes, where at) = 0;

 protected:
  address_map memory_;
};

/// Among threads.
class thread_regions final : public region_provider {
 public:
  thread_regions() noexcept : region_provider(address_space::one) {}

  [[nodiscard]] symmetric_region make(int ranks, std::size_t bytes, where at) override {
    return symmetric_region::map(ranks, bytes, backing::memory, at);
  }
  [[nodiscard]] ticket ticket_for(const symmetric_region& made) const override {
    return {reinterpret_cast<std::uintptr_t>(&made), 0, 0};
  }
  [[nodiscard]] symmetric_region open(const ticket& from, int, std::size_t, where) override {
    return *reinterpret_cast<const symmetric_region*>(from.region);
  }
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
