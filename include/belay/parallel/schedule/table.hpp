// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A table holds the actions of every stage in order. One class serves sizes known at compile time (arrays, so that the
// table is a constexpr value) and sizes known at start-up (vectors). A *rule* writes either, so that a schedule is
// written once, and what was proven in a static_assert is what runs.
// IWYU pragma: private, include "belay/parallel/schedule.hpp"
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

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
/// The next thing that a stage does: compute one micro-batch, or exchange tensors with neighbours. Transfers that must
/// be in flight at the same time form one group. Sends and receives have rendezvous semantics (neither side buffers):
/// two neighbours that both send first, each in an action of its own, deadlock.
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

/// Limits of a schedule whose sizes come from a file or are known at run time, so that they cannot exhaust memory.
inline constexpr std::size_t most_stages = 65'536;
inline constexpr std::size_t most_micro_batches = 1'048'576;
inline constexpr std::size_t most_cells = 16'777'216;  // stages times micro-batches

/// The stage whose list a rule writes, and the sizes of the schedule.
struct position {
  std::size_t stage = 0;
  std::size_t stages = 1;
  std::size_t micro_batches = 1;

  [[nodiscard]] constexpr bool operator==(const position&) const = default;
  [[nodiscard]] constexpr bool first() const noexcept { return stage == 0; }
  [[nodiscard]] constexpr bool last() const noexcept { return stage + 1 == stages; }
};

/// Storage for sizes known at compile time.
template <std::size_t Stages, std::size_t MicroBatches, std::size_t Actions>
struct fixed_storage {
  using text = std::string_view;
  using action_list = std::array<action, Actions>;
  using offset_list = std::array<std::size_t, Stages + 1>;
  template <class T>
  using per_stage = std::array<T, Stages>;
  template <class T>
  using per_cell = std::array<T, Stages * MicroBatches>;  // one for every stage and micro-batch, stage-major

  template <class T>
  [[nodiscard]] static constexpr per_stage<T> each_stage(std::size_t) {
    return {};
  }
  template <class T>
  [[nodiscard]] static constexpr per_cell<T> each_cell(std::size_t, std::size_t) {
    return {};
  }
};

/// Storage for sizes known at run time.
struct dynamic_storage {
  using text = std::string;
  using action_list = std::vector<action>;
  using offset_list = std::vector<std::size_t>;
  template <class T>
  using per_stage = std::vector<T>;
  template <class T>
  using per_cell = std::vector<T>;

  template <class T>
  [[nodiscard]] static constexpr per_stage<T> each_stage(std::size_t stages) {
    return per_stage<T>(stages);
  }
  template <class T>
  [[nodiscard]] static constexpr per_cell<T> each_cell(std::size_t stages, std::size_t micro_batches) {
    const checked_size cells = checked_size(stages) * micro_batches * sizeof(T);
    return per_cell<T>(cells.value([] { return "the stages of a schedule, times its micro-batches, are"; }, where{}) /
                       sizeof(T));
  }
};

/// A schedule as a value: `stages()` lists of actions over `micro_batches()` micro-batches. Whether the lists fit each
/// other is what `belay::proof` tells.
template <class Storage>
class basic_table {
 public:
  using storage = Storage;

  /// Takes the stages' lists one after the other; stage s owns [offsets[s], offsets[s + 1]).
  constexpr basic_table(typename Storage::text name, std::size_t stages, std::size_t micro_batches,
                        typename Storage::action_list actions, typename Storage::offset_list offsets)
      : name_(std::move(name)),
        stages_(stages),
        micro_batches_(micro_batches),
        actions_(std::move(actions)),
        offsets_(std::move(offsets)) {}

  [[nodiscard]] constexpr std::size_t stages() const noexcept { return stages_; }
  [[nodiscard]] constexpr std::size_t micro_batches() const noexcept { return micro_batches_; }
  /// Number of actions of all stages.
  [[nodiscard]] constexpr std::size_t size() const noexcept { return actions_.size(); }
  [[nodiscard]] constexpr std::string_view name() const noexcept { return name_; }

  /// The actions of `stage`, in order. They live as long as the table.
  [[nodiscard]] constexpr std::span<const action> actions(std::size_t stage) const noexcept {
    return {actions_.data() + offsets_[stage], offsets_[stage + 1] - offsets_[stage]};
  }

 private:
  typename Storage::text name_;
  std::size_t stages_;
  std::size_t micro_batches_;
  typename Storage::action_list actions_;
  typename Storage::offset_list offsets_;
};

/// A table of sizes known at compile time: the result of `one_f_one_b<4, 16>()`.
template <std::size_t Stages, std::size_t MicroBatches, std::size_t Actions>
using fixed_table = basic_table<fixed_storage<Stages, MicroBatches, Actions>>;

/// A table of sizes known at run time: the result of `one_f_one_b(4, 16)`.
using dynamic_table = basic_table<dynamic_storage>;

/// Any table, whatever its storage.
template <class Table>
concept any_table = requires(const Table& table, std::size_t stage) {
  typename Table::storage;
  { table.stages() } -> std::same_as<std::size_t>;
  { table.micro_batches() } -> std::same_as<std::size_t>;
  { table.actions(stage) } -> std::same_as<std::span<const action>>;
  { table.name() } -> std::same_as<std::string_view>;
};

/// Equal sizes and actions; names and storage do not matter.
template <class Left, class Right>
[[nodiscard]] constexpr bool operator==(const basic_table<Left>& left, const basic_table<Right>& right) {
  if (left.stages() != right.stages() || left.micro_batches() != right.micro_batches()) return false;
  for (std::size_t stage = 0; stage < left.stages(); ++stage) {
    const auto mine = left.actions(stage);
    const auto theirs = right.actions(stage);
    if (mine.size() != theirs.size()) return false;
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (!(mine[i] == theirs[i])) return false;
    }
  }
  return true;
}

/// A table from one list for each stage, for schedules that no rule writes.
template <class Lists = std::vector<std::vector<action>>>
[[nodiscard]] dynamic_table make_table(std::string name, std::size_t micro_batches, const Lists& lists,
                                       where at = where::current()) {
  if (lists.empty() || micro_batches == 0) {
    throw usage_error("a schedule needs at least one stage and one micro-batch", at);
  }
  std::vector<action> actions;
  std::vector<std::size_t> offsets(1);
  for (const auto& list : lists) {
    for (const action& next : list) actions.push_back(next);
    offsets.push_back(actions.size());
  }
  return dynamic_table(std::move(name), lists.size(), micro_batches, std::move(actions), std::move(offsets));
}

/// A copy whose sizes are known at run time only; of such a one itself.
template <class Storage>
[[nodiscard]] dynamic_table to_dynamic(const basic_table<Storage>& from) {
  std::vector<action> actions;
  std::vector<std::size_t> offsets(1);
  for (std::size_t stage = 0; stage < from.stages(); ++stage) {
    for (const action& next : from.actions(stage)) actions.push_back(next);
    offsets.push_back(actions.size());
  }
  return {std::string(from.name()), from.stages(), from.micro_batches(), std::move(actions), std::move(offsets)};
}
[[nodiscard]] inline dynamic_table to_dynamic(dynamic_table&& from) { return std::move(from); }

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI
