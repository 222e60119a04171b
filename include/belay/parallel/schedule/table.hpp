// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A table holds the actions of every rank in order. A network is cut into stages, and a rank holds as many of them as
// it has chunks. One class serves sizes known at compile time (arrays, so that the table is a constexpr value) and
// sizes known at start-up (vectors). A *rule* writes either, so that a schedule is written once, and what was proven in
// a static_assert is what runs.
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

/// The kind of an action: computes, an exchange, and actions beside them. A `backward` is an `input_gradient` and a
/// `weight_gradient` in one. `offload` and `reload` move what a forward has left, `recompute` makes it again; `gather`
/// and `release` are of a chunk's parameters, `reduce` of its gradients.
enum class action_kind : std::uint8_t {
  forward,
  backward,
  input_gradient,
  weight_gradient,
  exchange,
  offload,
  reload,
  recompute,
  gather,
  release,
  reduce
};

/// Whether actions of a kind are the forwards and backwards of a schedule.
[[nodiscard]] constexpr bool is_compute(action_kind kind) noexcept { return kind < action_kind::exchange; }
/// Whether they are beside those, and no exchanges.
[[nodiscard]] constexpr bool is_beside(action_kind kind) noexcept { return kind > action_kind::exchange; }
/// Whether they are of a chunk, and not of one of its micro-batches.
[[nodiscard]] constexpr bool is_of_chunk(action_kind kind) noexcept { return kind >= action_kind::gather; }
/// The letter of a kind in texts; '-' for an exchange.
[[nodiscard]] constexpr char letter_of(action_kind kind) noexcept {
  return "FBIW-ORKUSG"[static_cast<std::size_t>(kind)];
}

enum class transfer_direction : std::uint8_t { send, receive };

/// Activations travel from a stage to the next, gradients to the one before.
enum class payload : std::uint8_t { activation, gradient };

/// One tensor going to, or coming from, the rank `peer`.
struct transfer {
  transfer_direction direction = transfer_direction::send;
  payload what = payload::activation;
  std::uint16_t chunk = 0;  // of the rank whose list this is: what made the tensor, or what takes it
  std::uint32_t micro_batch = 0;
  std::uint32_t peer = 0;

  friend constexpr bool operator==(const transfer&, const transfer&) = default;
};

/// One entry of a rank's list: a compute of `micro_batch` and `chunk`, or a group of transfers. Transfers of a group
/// are posted together, and the group is complete when each of them has met its partner.
/// The next thing that a rank does: compute one micro-batch of a chunk, or exchange tensors with other ranks. Transfers
/// that must be in flight at the same time form one group. Sends and receives have rendezvous semantics (neither side
/// buffers): two ranks that both send first, each in an action of its own, deadlock.
struct action {
  static constexpr std::size_t most_transfers = 4;

  action_kind kind = action_kind::forward;
  std::uint8_t transfer_count = 0;
  bool paired = false;  // a forward that runs beside the backward after it; see `beside_next`
  std::uint16_t chunk = 0;
  std::uint32_t micro_batch = 0;
  std::array<transfer, most_transfers> group{};

  /// Of one micro-batch of a chunk: a compute, an offload, a reload or a recompute.
  [[nodiscard]] static constexpr action compute(action_kind kind, std::size_t micro_batch, std::size_t chunk = 0) {
    action made;
    made.kind = kind;
    made.chunk = static_cast<std::uint16_t>(chunk);
    made.micro_batch = static_cast<std::uint32_t>(micro_batch);
    return made;
  }

  /// Of a chunk: a gather, a release or a reduce.
  [[nodiscard]] static constexpr action of_chunk(action_kind kind, std::size_t chunk = 0) {
    return compute(kind, 0, chunk);
  }

  /// Makes this forward one with the backward after it, of another micro-batch: both inputs are there when the pair
  /// begins, both outputs when it ends. Where nothing can run beside another, it is the forward and then the backward.
  constexpr action& beside_next() {
    if (kind != action_kind::forward) throw usage_error("a forward runs beside the backward after it", {});
    paired = true;
    return *this;
  }

  /// An empty group; fill it with `send` and `receive`. A table drops a group that stays empty.
  [[nodiscard]] static constexpr action exchange() {
    action made;
    made.kind = action_kind::exchange;
    return made;
  }

  constexpr action& send(payload what, std::size_t batch, std::size_t to, std::size_t of_chunk = 0) {
    return add(transfer_direction::send, what, batch, to, of_chunk);
  }
  constexpr action& receive(payload what, std::size_t batch, std::size_t from, std::size_t for_chunk = 0) {
    return add(transfer_direction::receive, what, batch, from, for_chunk);
  }

  [[nodiscard]] constexpr bool is_exchange() const noexcept { return kind == action_kind::exchange; }

  /// The group's transfers; empty for a compute.
  [[nodiscard]] constexpr std::span<const transfer> transfers() const noexcept {
    return {group.data(), is_exchange() ? transfer_count : std::size_t{0}};
  }

  friend constexpr bool operator==(const action&, const action&) = default;

 private:
  constexpr action& add(transfer_direction direction, payload what, std::size_t batch, std::size_t peer,
                        std::size_t own_chunk) {
    if (!is_exchange()) throw usage_error("transfers belong into action::exchange(), not into a compute", {});
    if (transfer_count == most_transfers) throw usage_error("an exchange holds at most 4 transfers", {});
    transfer& added = group[transfer_count++];
    added.direction = direction;
    added.what = what;
    added.chunk = static_cast<std::uint16_t>(own_chunk);
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
    case action_kind::offload: return "offload";
    case action_kind::reload: return "reload";
    case action_kind::recompute: return "recompute";
    case action_kind::gather: return "gather";
    case action_kind::release: return "release";
    case action_kind::reduce: return "reduce";
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

/// A stage's place in the pipeline, and the number of micro-batches.
struct position {
  std::size_t stage = 0;
  std::size_t stages = 1;
  std::size_t micro_batches = 1;

  [[nodiscard]] constexpr bool operator==(const position&) const = default;
  [[nodiscard]] constexpr bool first() const noexcept { return stage == 0; }
  [[nodiscard]] constexpr bool last() const noexcept { return stage + 1 == stages; }
};

/// The rank whose list a rule writes, and the sizes of the schedule.
struct rank_position {
  std::size_t rank = 0;
  std::size_t ranks = 1;
  std::size_t micro_batches = 1;

  [[nodiscard]] constexpr bool first() const noexcept { return rank == 0; }
  [[nodiscard]] constexpr bool last() const noexcept { return rank + 1 == ranks; }
};

/// The stage that is chunk `chunk` of rank `rank`, of `ranks`.
using stage_function = std::size_t (*)(std::size_t rank, std::size_t chunk, std::size_t ranks);

/// Every chunk begins at rank 0 again: what the last rank puts out goes to the first one.
[[nodiscard]] constexpr std::size_t stage_in_loop(std::size_t rank, std::size_t chunk, std::size_t ranks) {
  return chunk * ranks + rank;
}
/// Every chunk begins where the one before has ended: with two of them rank 0 has the first stage and the last.
[[nodiscard]] constexpr std::size_t stage_in_v(std::size_t rank, std::size_t chunk, std::size_t ranks) {
  return chunk * ranks + (chunk % 2 == 0 ? rank : ranks - 1 - rank);
}

/// Where the stages of a network lie: how many each rank holds, and which.
struct placement {
  std::size_t chunks = 1;
  stage_function stage = stage_in_loop;
};

/// Storage for sizes known at compile time.
template <std::size_t Ranks, std::size_t MicroBatches, std::size_t Actions, std::size_t Chunks = 1>
struct fixed_storage {
  using text = std::string_view;
  using action_list = std::array<action, Actions>;
  using offset_list = std::array<std::size_t, Ranks + 1>;
  template <class T>
  using per_rank = std::array<T, Ranks>;
  template <class T>
  using per_stage = std::array<T, Ranks * Chunks>;
  template <class T>
  using per_cell = std::array<T, Ranks * Chunks * MicroBatches>;  // one for every stage and micro-batch, stage-major

  template <class T>
  [[nodiscard]] static constexpr per_rank<T> each_rank(std::size_t) {
    return {};
  }
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
  using per_rank = std::vector<T>;
  template <class T>
  using per_stage = std::vector<T>;
  template <class T>
  using per_cell = std::vector<T>;

  template <class T>
  [[nodiscard]] static constexpr per_rank<T> each_rank(std::size_t ranks) {
    return per_rank<T>(ranks);
  }
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

/// A schedule as a value: `ranks()` lists of actions over `micro_batches()` micro-batches. Whether the lists fit each
/// other is what `belay::proof` tells.
template <class Storage>
class basic_table {
 public:
  using storage = Storage;

  /// Takes the ranks' lists one after the other; rank r owns [offsets[r], offsets[r + 1]). Throws usage_error where
  /// `placed` does not give each stage to one chunk of one rank.
  constexpr basic_table(typename Storage::text name, std::size_t ranks, std::size_t micro_batches,
                        typename Storage::action_list actions, typename Storage::offset_list offsets,
                        placement placed = {})
      : basic_table(std::move(name), ranks, micro_batches, std::move(actions), std::move(offsets), placed.chunks,
                    placed.stage) {}
  /// Of stages that lie where `stage_of(rank, chunk, ranks)` says.
  template <class StageOf>
  constexpr basic_table(typename Storage::text name, std::size_t ranks, std::size_t micro_batches,
                        typename Storage::action_list actions, typename Storage::offset_list offsets,
                        std::size_t chunks, const StageOf& stage_of)
      : name_(std::move(name)),
        ranks_(ranks),
        chunks_(chunks),
        micro_batches_(micro_batches),
        actions_(std::move(actions)),
        offsets_(std::move(offsets)),
        stage_of_(Storage::template each_stage<std::uint32_t>(ranks * chunks)),
        holder_of_(Storage::template each_stage<std::uint32_t>(ranks * chunks)) {
    auto held = Storage::template each_stage<std::uint8_t>(stages());
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      for (std::size_t chunk = 0; chunk < chunks_; ++chunk) {
        const std::size_t holder = rank * chunks_ + chunk;
        const std::size_t stage = stage_of(rank, chunk, ranks_);
        if (stage >= stages() || held[stage]++ != 0)
          throw usage_error("a placement gives each stage of a schedule to one chunk of one rank", {});
        stage_of_[holder] = static_cast<std::uint32_t>(stage);
        holder_of_[stage] = static_cast<std::uint32_t>(holder);
      }
    }
  }

  [[nodiscard]] constexpr std::size_t ranks() const noexcept { return ranks_; }
  /// Stages that each rank holds.
  [[nodiscard]] constexpr std::size_t chunks() const noexcept { return chunks_; }
  /// Parts of the network: ranks times chunks.
  [[nodiscard]] constexpr std::size_t stages() const noexcept { return ranks_ * chunks_; }
  [[nodiscard]] constexpr std::size_t micro_batches() const noexcept { return micro_batches_; }
  /// Number of actions of all ranks.
  [[nodiscard]] constexpr std::size_t size() const noexcept { return actions_.size(); }
  [[nodiscard]] constexpr std::string_view name() const noexcept { return name_; }

  /// The actions of `rank`, in order. They live as long as the table.
  [[nodiscard]] constexpr std::span<const action> actions(std::size_t rank) const noexcept {
    return {actions_.data() + offsets_[rank], offsets_[rank + 1] - offsets_[rank]};
  }

  /// The stage that a rank holds as its chunk; the rank that holds a stage, and as which of its chunks.
  [[nodiscard]] constexpr std::size_t stage(std::size_t rank, std::size_t chunk) const noexcept {
    return stage_of_.data()[rank * chunks_ + chunk];
  }
  [[nodiscard]] constexpr std::size_t rank_of(std::size_t stage) const noexcept {
    return chunks_ == 1 ? holder_of_.data()[stage] : holder_of_.data()[stage] / chunks_;
  }
  [[nodiscard]] constexpr std::size_t chunk_of(std::size_t stage) const noexcept {
    return holder_of_.data()[stage] % chunks_;
  }

 private:
  typename Storage::text name_;
  std::size_t ranks_;
  std::size_t chunks_;
  std::size_t micro_batches_;
  typename Storage::action_list actions_;
  typename Storage::offset_list offsets_;
  typename Storage::template per_stage<std::uint32_t> stage_of_;   // of holder: rank times chunks, and chunk
  typename Storage::template per_stage<std::uint32_t> holder_of_;  // of stage
};

/// A table of sizes known at compile time: the result of `one_f_one_b<4, 16>()`.
template <std::size_t Ranks, std::size_t MicroBatches, std::size_t Actions, std::size_t Chunks = 1>
using fixed_table = basic_table<fixed_storage<Ranks, MicroBatches, Actions, Chunks>>;

/// A table of sizes known at run time: the result of `one_f_one_b(4, 16)`.
using dynamic_table = basic_table<dynamic_storage>;

/// Any table, whatever its storage.
template <class Table>
concept any_table = requires(const Table& table, std::size_t number) {
  typename Table::storage;
  { table.ranks() } -> std::same_as<std::size_t>;
  { table.chunks() } -> std::same_as<std::size_t>;
  { table.micro_batches() } -> std::same_as<std::size_t>;
  { table.actions(number) } -> std::same_as<std::span<const action>>;
  { table.stage(number, number) } -> std::same_as<std::size_t>;
  { table.rank_of(number) } -> std::same_as<std::size_t>;
  { table.name() } -> std::same_as<std::string_view>;
};

/// Equal sizes, placement and actions; names and storage do not matter.
template <class Left, class Right>
[[nodiscard]] constexpr bool operator==(const basic_table<Left>& left, const basic_table<Right>& right) {
  if (left.ranks() != right.ranks() || left.chunks() != right.chunks() || left.micro_batches() != right.micro_batches())
    return false;
  for (std::size_t stage = 0; stage < left.stages(); ++stage) {
    if (left.rank_of(stage) != right.rank_of(stage) || left.chunk_of(stage) != right.chunk_of(stage)) return false;
  }
  for (std::size_t rank = 0; rank < left.ranks(); ++rank) {
    const auto mine = left.actions(rank);
    const auto theirs = right.actions(rank);
    if (mine.size() != theirs.size()) return false;
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (!(mine[i] == theirs[i])) return false;
    }
  }
  return true;
}

/// A table from one list for each rank, for schedules that no rule writes. With `chunks` above 1 a rank holds so many
/// stages, which lie where `stage_of(rank, chunk, ranks)` says.
template <class Lists = std::vector<std::vector<action>>, class StageOf = stage_function>
[[nodiscard]] dynamic_table make_table(std::string name, std::size_t micro_batches, const Lists& lists,
                                       std::size_t chunks, const StageOf& stage_of, where at = where::current()) {
  if (lists.empty() || micro_batches == 0 || chunks == 0) {
    throw usage_error("a schedule needs at least one stage and one micro-batch", at);
  }
  std::vector<action> actions;
  std::vector<std::size_t> offsets(1);
  for (const auto& list : lists) {
    for (const action& next : list) actions.push_back(next);
    offsets.push_back(actions.size());
  }
  return dynamic_table(std::move(name), lists.size(), micro_batches, std::move(actions), std::move(offsets), chunks,
                       stage_of);
}
/// Of ranks that hold one stage each.
template <class Lists = std::vector<std::vector<action>>>
[[nodiscard]] dynamic_table make_table(std::string name, std::size_t micro_batches, const Lists& lists,
                                       where at = where::current()) {
  return make_table(std::move(name), micro_batches, lists, 1, stage_in_loop, at);
}

/// A copy whose sizes are known at run time only; of such a one itself.
template <class Storage>
[[nodiscard]] dynamic_table to_dynamic(const basic_table<Storage>& from) {
  std::vector<action> actions;
  std::vector<std::size_t> offsets(1);
  for (std::size_t rank = 0; rank < from.ranks(); ++rank) {
    for (const action& next : from.actions(rank)) actions.push_back(next);
    offsets.push_back(actions.size());
  }
  const auto stage_of = [&](std::size_t rank, std::size_t chunk, std::size_t) { return from.stage(rank, chunk); };
  return {std::string(from.name()),
          from.ranks(),
          from.micro_batches(),
          std::move(actions),
          std::move(offsets),
          from.chunks(),
          stage_of};
}
[[nodiscard]] inline dynamic_table to_dynamic(dynamic_table&& from) { return std::move(from); }

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI
