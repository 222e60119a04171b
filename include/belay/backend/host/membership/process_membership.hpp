// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks that are processes, as one of them sees it: it has joined through a client, the coordinator keeps its shared
// memory, and leads the survivors to one list.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host/bootstrap/client.hpp"
#include "belay/backend/host/membership/membership.hpp"
#include "belay/backend/host/memory/memory_segment.hpp"
#include "belay/backend/host/memory/region_provider.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Regions that the coordinator keeps. A region that this rank has given up stays mapped here until all ranks of its
/// group have given it up: a peer that still has it may name memory in it, and asks no rank before. The coordinator is
/// told with the next request, because the end of a region is a destructor and does not communicate.
class process_regions final : public region_provider, public std::enable_shared_from_this<process_regions> {
 public:
  process_regions(std::shared_ptr<client> coordinator, std::shared_ptr<const world_status> world) noexcept;
  ~process_regions() override;

  [[nodiscard]] symmetric_region make(int ranks, std::size_t bytes, where at) override;
  [[nodiscard]] ticket ticket_for(const symmetric_region& made) const override;
  [[nodiscard]] symmetric_region open(const ticket& from, int ranks, std::size_t bytes, where at) override;

 private:
  struct region_end;
  struct share_of_region;

  [[nodiscard]] time_point until() const { return world_->now() + world_->timeout(); }
  symmetric_region adopt(client::region found, int ranks, std::size_t stride, where at);
  void give_up(std::unique_ptr<share_of_region> mine) noexcept;
  void unmap_unused() noexcept;
  void drop_retired(where at);

  std::shared_ptr<client> client_;
  std::shared_ptr<const world_status> world_;
  std::uint64_t last_ = 0;
  std::mutex mutex_;
  std::unique_ptr<share_of_region> given_up_;  // and still mapped
  std::uint64_t retired_[256] = {};
  std::size_t retired_count_ = 0;
};

/// This process's membership in a world of processes.
class process_membership final : public membership {
 public:
  /// Over a client that has just entered.
  process_membership(client joined, int spins);

  /// The first epoch, as this rank sees it. Throws input_error when the coordinator's world has another size.
  [[nodiscard]] epoch_view enter();

  [[nodiscard]] epoch_view shrink(const epoch_view& from, world_status::clock::duration limit, where at) override;
  /// Peers see it by its goodbye, or by its end.
  void note_exit(const epoch_view&) noexcept override {}

  [[nodiscard]] client& coordinator_client() noexcept { return *client_; }

  /// The coordinator's process is gone: from now on nothing can be made or agreed on. From any thread.
  void lose_coordinator(const std::string& why) noexcept;

 private:
  [[nodiscard]] epoch_view view_of(control_block shared, int number, std::vector<int> members);

  std::shared_ptr<client> client_;
  int spins_;
  std::mutex mutex_;
  std::shared_ptr<world_status> present_;
  std::shared_ptr<memory_segment> segment_;  // of the present epoch
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/membership/process_membership.ipp"  // IWYU pragma: export
#endif
