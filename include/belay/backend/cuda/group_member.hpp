// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One rank's part in a group of ranks that share a device, and how it meets the others: on the host, in the group's
// twin in the control world, to hand over events that it has recorded.
// IWYU pragma: private, include "belay/backend/cuda/group.hpp"
#pragma once

#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/cuda/shared_group.hpp"
#include "belay/comm/abort_cause.hpp"
#include "belay/comm/call_mismatch.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// A rank of the control world, whose state says why that world has failed and how long ranks wait for each other.
template <class R>
concept control_rank = requires(R& rank, const abort_cause& why, const call_site& call, int other, lane of) {
  typename R::group_type;
  rank.state()->abort(why);
  rank.state()->raise(call);
  { rank.state()->aborted() } -> std::same_as<bool>;
  { rank.state()->left(other, of) } -> std::same_as<bool>;
  { rank.state()->timeout() } -> std::convertible_to<std::chrono::steady_clock::duration>;
};

template <class ControlRank>
using control_state = typename std::remove_cvref_t<decltype(std::declval<ControlRank&>().state())>::element_type;

/// A range of memory.
struct piece {
  std::byte* first = nullptr;
  std::size_t bytes = 0;
};

/// Used by one thread at a time, but for transfers.
template <device_api Api, control_rank ControlRank>
class group_member {
 public:
  using duration = std::chrono::steady_clock::duration;

  group_member(std::shared_ptr<control_state<ControlRank>> world, std::shared_ptr<shared_group<Api>> shared,
               std::span<const int> members, int rank)
      : world_(std::move(world)),
        shared_(std::move(shared)),
        members_(members.begin(), members.end()),
        rank_(static_cast<std::size_t>(rank)),
        sent_(members.size()),
        taken_(members.size()),
        given_(members.size()) {}

  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] std::size_t rank() const noexcept { return rank_; }
  [[nodiscard]] const std::vector<int>& members() const noexcept { return members_; }
  [[nodiscard]] shared_group<Api>& shared() const noexcept { return *shared_; }
  [[nodiscard]] control_state<ControlRank>& world() const noexcept { return *world_; }

  /// For the operation that runs: what it sends to each rank, or to all, and where it puts what each has sent.
  [[nodiscard]] std::span<piece> sent() noexcept { return sent_; }
  [[nodiscard]] std::span<piece> taken() noexcept { return taken_; }

  /// For one that reads peers' buffers where they are: what rank q gives, and where it makes what others take of it.
  [[nodiscard]] std::span<given_buffers> given() noexcept { return given_; }

  /// For the transfers of a lane.
  [[nodiscard]] std::vector<parcel<Api>>& parcels(lane of) noexcept { return parcels_[index(of)]; }
  [[nodiscard]] std::vector<const p2p*>& receives(lane of) noexcept { return receives_[index(of)]; }

  /// The slot whose turn it is.
  [[nodiscard]] std::size_t turn() const noexcept { return round_ % 2; }
  [[nodiscard]] bool first_use_of_slot() const noexcept { return round_ < 2; }
  void end_round() noexcept { ++round_; }

  /// Whether something was started on the group.
  [[nodiscard]] bool has_started() const noexcept { return has_started_; }
  void note_started() noexcept { has_started_ = true; }

  // As `exchanged_calls`, once all have met.
  [[nodiscard]] int world_rank(int q) const noexcept { return members_[static_cast<std::size_t>(q)]; }
  [[nodiscard]] auto& call_of(int q) const noexcept { return shared_->called(turn(), static_cast<std::size_t>(q)); }
  [[nodiscard]] std::span<const std::size_t> send_counts_of(int q) const noexcept { return call_of(q).sent; }
  [[nodiscard]] std::span<const std::size_t> receive_counts_of(int q) const noexcept { return call_of(q).expected; }
  [[nodiscard]] std::string call_text(int q) const {
    const auto& call = call_of(q);
    return call.print.shape == 0 ? call.print.text() : call.print.text_with(call.sent);
  }
  [[nodiscard]] std::string site_of(int q) const { return call_of(q).at.text(); }
  [[noreturn]] void refuse(const mismatch_report& report) {
    const auto& mine = call_of(static_cast<int>(rank_));
    abort_cause why;
    why.fault = comm_fault::mismatch;
    why.culprits = report.culprits;
    why.message = report.message;
    why.there = report.there;
    fail(why, mine.print.what, mine.at);
  }

  /// Stops the world, unless it has stopped already, and throws the first cause.
  [[noreturn]] void fail(const abort_cause& why, operation what, const where& at) const {
    world_->abort(why);
    raise(what, at);
  }
  [[noreturn]] void raise(operation what, const where& at) const {
    world_->raise(call_site{what, 0, round_, 0, at});
    std::terminate();
  }

 private:
  std::shared_ptr<control_state<ControlRank>> world_;
  std::shared_ptr<shared_group<Api>> shared_;
  std::vector<int> members_;
  std::size_t rank_;
  std::vector<piece> sent_, taken_;
  std::vector<given_buffers> given_;
  std::array<std::vector<parcel<Api>>, lane_count> parcels_;
  std::array<std::vector<const p2p*>, lane_count> receives_;
  std::uint64_t round_ = 0;
  bool has_started_ = false;
};

}  // namespace belay::inline BELAY_ABI::cuda
