// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Symmetric memory of a group over NCCL: one allocation on each rank, registered with the group's communicator, so that
// NCCL moves it without staging, and ranks of a load/store team address each other's. Its users take ranges in the same
// order on all ranks, so that a range has the same offset everywhere. It is made once, and never grows.
//
//   auto window = rank.make_window(mesh.expert(), bytes);  // collective over the world
//   const std::size_t tokens = window.take(1 << 20);       // the same offset on all ranks
//   if (window.reach() > 1) kit.each(n, put_to_peer{window.pointers(), tokens});
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "belay/backend/cuda/memory.hpp"
#include "belay/backend/nccl/channel.hpp"
#include "belay/backend/nccl/nccl_api.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI::nccl {

/// The bytes that a window of `bytes` takes of the device: whole pages of NCCL's memory. For plans.
template <nccl_api N>
[[nodiscard]] constexpr std::size_t window_bytes(const N& api, std::size_t bytes) noexcept {
  const std::size_t page = api.window_granularity();
  return (bytes + page - 1) / page * page;
}

/// Made by `rank::make_window`; ends before `rank::finish`.
template <cuda::device_api Api, nccl_api N>
class symmetric_window {
 public:
  using handle = typename N::communicator_type;

  /// Allocates and registers `bytes`, whole pages, with `on`, which has run a collective. Throws backend_error.
  symmetric_window(std::shared_ptr<channel<Api, N>> in, handle on, std::size_t bytes, where at)
      : channel_(std::move(in)), api_(&channel_->lib().api()), on_(on), bytes_(bytes) {
    const auto turn = channel_->made().enter_alive(at);
    channel_->lib().expect(api_->allocate(data_, bytes), "allocate", bytes, at);
    const auto got = api_->register_window(on_, data_, bytes, window_);
    if (!api_->succeeded(got)) channel_->lib().note(api_->release(data_), "release");
    channel_->lib().expect(got, "register_window", bytes, at);
    channel_->count_window(1);
  }
  /// Of a rank alone: memory of the device.
  symmetric_window(std::shared_ptr<channel<Api, N>> in, std::size_t bytes, where at)
      : channel_(std::move(in)),
        single_rank_(std::in_place, channel_->device(), bytes, at),
        data_(single_rank_->data()),
        bytes_(bytes) {}
  symmetric_window(symmetric_window&& other) noexcept
      : channel_(std::move(other.channel_)),
        api_(std::exchange(other.api_, nullptr)),
        on_(other.on_),
        single_rank_(std::move(other.single_rank_)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        window_(other.window_),
        team_(std::exchange(other.team_, {})),
        table_(std::move(other.table_)),
        taken_(other.taken_) {}
  symmetric_window& operator=(symmetric_window&&) = delete;
  /// Deregisters, unless the communicator has been aborted. What uses the memory is over.
  ~symmetric_window() {
    if (api_ == nullptr) return;
    const auto turn = channel_->made().enter();
    if (channel_->made().alive()) channel_->lib().note(api_->deregister_window(on_, window_), "deregister_window");
    channel_->count_window(-1);               // also of one that was aborted: `finish` names what that failed of
    static_cast<void>(api_->release(data_));  // a failure of it has no consequence here
  }

  /// This rank's memory.
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_; }

  /// A range of its own for one user, at the same offset on all ranks if they take the same in the same order. Aligned
  /// to 256 bytes. Throws budget_error where there is no room: a window never grows.
  [[nodiscard]] std::size_t take(std::size_t bytes, where at = where::current()) {
    constexpr std::size_t alignment = 256;
    const std::size_t first = (taken_ + alignment - 1) / alignment * alignment;
    if (first > bytes_ || bytes > bytes_ - first)
      throw budget_error("symmetric window", bytes, first > bytes_ ? 0 : bytes_ - first, at);
    taken_ = first + bytes;
    return first;
  }

  /// How many ranks load and store this one's window, and it theirs: 0 where there is no such team, or where a rank of
  /// the group has none.
  [[nodiscard]] int reach() const noexcept { return team_.ranks; }
  /// Where rank `peer` of the group is in `pointers`; nothing where it is reached by messages only.
  [[nodiscard]] std::optional<int> in_team(int peer, int rank) const noexcept {
    if (team_.ranks == 0) return {};
    const int first = rank - team_.rank * team_.stride;
    const int distance = peer - first;
    if (distance < 0 || distance % team_.stride != 0 || distance / team_.stride >= team_.ranks) return {};
    return distance / team_.stride;
  }
  /// Memory of the device: where each member of the team has its window. Null where there is no reach.
  [[nodiscard]] std::byte* const* pointers() const noexcept {
    return table_ ? reinterpret_cast<std::byte* const*>(table_->data()) : nullptr;
  }

  /// The load/store team of this rank, as NCCL says. None where NCCL has made no window, for want of memory that peers
  /// address; throws backend_error with NCCL's own words where it cannot tell.
  [[nodiscard]] load_store_team find_team(where at) const {
    load_store_team team;
    if (window_ == typename N::window_type{}) return team;
    const auto turn = channel_->made().enter_alive(at);
    channel_->lib().expect(api_->find_team(on_, team), "find_team", 0, at);
    return team;
  }
  /// Has the pointers of `team` written, once, and waits for it. All members have registered before.
  void reach_out(const load_store_team& team, where at) {
    table_.emplace(channel_->device(), static_cast<std::size_t>(team.ranks) * sizeof(std::byte*), at);
    auto* const to = reinterpret_cast<std::byte**>(table_->data());
    {
      const auto turn = channel_->made().enter_alive(at);
      channel_->lib().expect(api_->write_pointers(channel_->stream().handle(), window_, team, to), "write_pointers",
                             table_->size_bytes(), at);
    }
    channel_->stream().synchronize(at);
    team_ = team;
  }

 private:
  std::shared_ptr<channel<Api, N>> channel_;
  N* api_ = nullptr;  // null: of a rank alone, or moved from
  handle on_{};
  std::optional<cuda::device_memory<Api>> single_rank_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  typename N::window_type window_{};
  load_store_team team_;
  std::optional<cuda::device_memory<Api>> table_;
  std::size_t taken_ = 0;
};

}  // namespace belay::inline BELAY_ABI::nccl
