// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a stage does next: compute one micro-batch, or exchange tensors with neighbours. Transfers that must be in
// flight at the same time form one group. Sends and receives have rendezvous semantics (neither side buffers): two
// neighbours that both send first, each in an action of its own, deadlock.
// IWYU pragma: private, include "belay/parallel/schedule.hpp"
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace schedule {

/// The kind of an action. A `backward` is an `input_gradient` and a `weight_gradient` in one.
enum class action_kind : std::uint8_t { forward, backward, input_gradient, weight_gradient, exchange };

enum class transfer_direction : std::uint8_t { send, receive };

/// Activations travel from a stage to the next, gradients to the one before.
enum class payload : std::uint8_t { activation, gradient };

/// One tensor going to, or coming from, the stage `peer`.
struct transfer {
  transfer_direction direction = transfer_direction::send;
  payload what = payload::activation;
  std::uint16_t chunk = 0;  // of the stage that owns the tensor; 0 where a stage is one chunk
  std::uint32_t micro_batch = 0;
  std::uint32_t peer = 0;

  friend constexpr bool operator==(const transfer&, const transfer&) = default;
};

/// One entry of a stage's list: a compute of `micro_batch` and `chunk`, or a group of transfers. Transfers of a group
/// are posted together, and the group is complete when each of them has met its partner.
struct action {
  static constexpr std::size_t most_transfers = 4;

  action_kind kind = action_kind::forward;
  std::uint8_t transfer_count = 0;
  std::uint16_t chunk = 0;
  std::uint32_t micro_batch = 0;
  std::array<transfer, most_transfers> group{};

  [[nodiscard]] static constexpr action compute(action_kind kind, std::size_t micro_batch, std::size_t chunk = 0) {
    action made;
    made.kind = kind;
    made.chunk = static_cast<std::uint16_t>(chunk);
    made.micro_batch = static_cast<std::uint32_t>(micro_batch);
    return made;
  }

  /// An empty group; fill it with `send` and `receive`. A table drops a group that stays empty.
  [[nodiscard]] static constexpr action exchange() {
    action made;
    made.kind = action_kind::exchange;
    return made;
  }

  constexpr action& send(payload what, std::size_t batch, std::size_t to) {
    return add(transfer_direction::send, what, batch, to);
  }
  constexpr action& receive(payload what, std::size_t batch, std::size_t from) {
    return add(transfer_direction::receive, what, batch, from);
  }

  [[nodiscard]] constexpr bool is_exchange() const noexcept { return kind == action_kind::exchange; }

  /// The group's transfers; empty for a compute.
  [[nodiscard]] constexpr std::span<const transfer> transfers() const noexcept {
    return {group.data(), is_exchange() ? transfer_count : std::size_t{0}};
  }

  friend constexpr bool operator==(const action&, const action&) = default;

 private:
  constexpr action& add(transfer_direction direction, payload what, std::size_t batch, std::size_t peer) {
    if (!is_exchange()) throw usage_error("transfers belong into action::exchange(), not into a compute", {});
    if (transfer_count == most_transfers) throw usage_error("an exchange holds at most 4 transfers", {});
    transfer& added = group[transfer_count++];
    added.direction = direction;
    added.what = what;
    added.micro_batch = static_cast<std::uint32_t>(batch);
    added.peer = static_cast<std::uint32_t>(peer);
    return *this;
  }
};

[[nodiscard]] constexpr const char* name(action_kind kind) noexcept {
  switch (kind) {
    case action_kind::forward: return "forward";
    case action_kind::backward: return "backward";
    case action_kind::input_gradient: return "input gradient";
    case action_kind::weight_gradient: return "weight gradient";
    case action_kind::exchange: return "exchange";
  }
  return "unknown";
}

[[nodiscard]] constexpr const char* name(payload what) noexcept {
  return what == payload::activation ? "activation" : "gradient";
}

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI
