// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A device that ranks share: the device of each of them, and one arena, made once, that their groups communicate over.
// IWYU pragma: private, include "belay/backend/cuda/world.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/cuda/communication_memory.hpp"
#include "belay/backend/cuda/device.hpp"
#include "belay/backend/cuda/device_calls.hpp"
#include "belay/backend/cuda/kit.hpp"
#include "belay/backend/cuda/memory.hpp"
#include "belay/backend/cuda/shared_group.hpp"
#include "belay/comm/rehearsal.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/available_memory.hpp"

namespace belay::inline BELAY_ABI::cuda {

template <device_api Api>
class shared_device {
 public:
  /// Of the calling thread too. Throws backend_error, and usage_error for slots of an odd size.
  shared_device(Api& api, int ranks, const communication_memory& sizes, where at) : sizes_(sizes) {
    const std::size_t bytes = sizes.slot_for(0);
    if (bytes == 0 || bytes % 256 != 0 || bytes < 64 * static_cast<std::size_t>(ranks))
      throw usage_error(
          "slots of " + std::to_string(bytes) + " bytes: they are a multiple of 256, and have 64 or more for each rank",
          at);
    for (int rank = 0; rank < ranks; ++rank) devices_.emplace_back(api, rank, at);
    make_arena(at);
  }
  shared_device(const shared_device&) = delete;
  shared_device& operator=(const shared_device&) = delete;

  [[nodiscard]] const device<Api>& of(int rank) const noexcept { return devices_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::size_t communication_bytes() const noexcept {
    return arena_ == nullptr ? 0 : arena_->size_bytes();
  }
  /// The bytes that each rank communicates with where those collectives are planned: its part of the arena, and what
  /// its calls work in.
  [[nodiscard]] std::size_t planned_bytes(const rehearsal::call_sizes& planned) const noexcept {
    return sizes_.bytes_of_rank(static_cast<int>(devices_.size()), planned);
  }
  /// The next run has an arena for the groups of a plan. Until then it is measured as taken, and its memory is free.
  void make_room_for(const rehearsal::call_sizes& planned) {
    groups_.clear();
    planned_ = planned;
    if (arena_bytes() != communication_bytes()) arena_.reset();
  }

  /// The bytes that the device has left for ranks' leases, when each rank has a kit and the memory of its calls. A kit,
  /// for which libraries take memory, is made and ended to measure that. Throws backend_error.
  [[nodiscard]] std::size_t measure(where at) {
    const device_memory_info before = memory_info(at);
    std::size_t with_kit = before.free;
    {
      const kit<Api> one(devices_.front(), {}, at);
      with_kit = memory_info(at).free;
    }
    const std::size_t ranks = devices_.size();
    const std::size_t arena = arena_bytes(), to_come = arena - communication_bytes();
    usage_.total = before.total;
    usage_.before = before.total - lesser_of(before.total, before.free + communication_bytes());
    usage_.communication = arena / ranks + device_calls<Api>::room;
    usage_.kit = before.free - lesser_of(before.free, with_kit);
    const std::size_t taken = to_come + ranks * (device_calls<Api>::room + usage_.kit);
    return before.free - lesser_of(before.free, taken);
  }
  /// Bytes that each rank takes, as last measured.
  [[nodiscard]] const device_usage& usage() const noexcept { return usage_; }

  /// Before the ranks of a run are there: what groups of an earlier run had is free. Throws backend_error where the
  /// device has no room for the arena.
  void begin_run(where at) {
    groups_.clear();
    used_ = 0;
    make_arena(at);
  }
  /// The part of a group that its members share: of the `number`-th group that each of them makes of `members`. Called
  /// by their threads. Throws budget_error where the arena has no room left.
  [[nodiscard]] std::shared_ptr<shared_group<Api>> join(std::span<const int> members, std::size_t number, where at) {
    const std::lock_guard lock(joining_);
    auto& found = groups_[{std::vector<int>(members.begin(), members.end()), number}];
    if (found != nullptr) return found;
    const std::size_t slot_bytes = slots_of(members, number);
    const std::size_t bytes = members.size() == 1 ? 0 : 2 * members.size() * slot_bytes;
    const std::size_t left = communication_bytes() - used_;
    if (bytes > left)
      throw budget_error("memory of the device for groups (communication_memory::groups)", bytes, left, at);
    std::byte* const slot_memory = bytes == 0 ? nullptr : arena_->data() + used_;
    found = std::make_shared<shared_group<Api>>(devices_.front(), static_cast<int>(members.size()), slot_memory,
                                                slot_bytes, arena_, at);
    used_ += bytes;
    return found;
  }

 private:
  [[nodiscard]] std::size_t arena_bytes() const noexcept {
    return devices_.size() == 1 ? 0 : sizes_.bytes(static_cast<int>(devices_.size()), planned_);
  }
  void make_arena(where at) {
    const std::size_t bytes = arena_bytes();
    if (bytes != communication_bytes())
      arena_ = std::make_shared<const device_memory<Api>>(devices_.front(), bytes, at);
  }
  // The first group of all ranks is the world, which each rank has. What is made of the same ranks again was not
  // planned.
  [[nodiscard]] std::size_t slots_of(std::span<const int> members, std::size_t number) const {
    const bool all = members.size() == devices_.size() && std::is_sorted(members.begin(), members.end());
    if (all && number == 0) return sizes_.slot_for(planned_.of_world());
    return sizes_.slot_for(number == (all ? 1U : 0U) ? planned_.of(members) : 0);
  }
  [[nodiscard]] device_memory_info memory_info(where at) const {
    device_memory_info room;
    devices_.front().expect(devices_.front().api().memory_info(room), "memory_info", 0, at);
    return room;
  }

  communication_memory sizes_;
  rehearsal::call_sizes planned_;
  device_usage usage_;
  std::deque<device<Api>> devices_;
  std::shared_ptr<const device_memory<Api>> arena_;
  std::mutex joining_;
  std::map<std::pair<std::vector<int>, std::size_t>, std::shared_ptr<shared_group<Api>>> groups_;
  std::size_t used_ = 0;
};

}  // namespace belay::inline BELAY_ABI::cuda
