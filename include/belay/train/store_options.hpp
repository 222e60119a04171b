// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a parameter store is made with.
// IWYU pragma: private, include "belay/train/store.hpp"
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/comm/axis.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/tier.hpp"
#include "belay/device/tier_file.hpp"
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/bucket/replica_group.hpp"
#include "belay/parallel/gathers/gathered_bucket.hpp"
#include "belay/parallel/gathers/parameter_gathers.hpp"
#include "belay/parallel/lists_parameters.hpp"
#include "belay/parallel/local_box.hpp"

namespace belay::inline BELAY_ABI {

/// A stage of ZeRO: the ranks that replicate a parameter divide among themselves nothing (0), the optimizer's state
/// (1), gradients too (2), parameters too (3): their layers are wrapped in `belay::gathers`.
template <int Stage>
struct zero {
  static_assert(Stage >= 0 && Stage <= 3,
                "belay::zero<0> (nothing is divided), <1> (optimizer state), <2> (gradients too) or <3> (parameters "
                "too)");
  static constexpr auto stage = static_cast<zero_stage>(Stage);
};

/// A model whose parameters lie in memory of its own, as `parameter_list` has.
template <class M>
concept lends_memory = lists_parameters<M> && requires(M& model, std::size_t number) {
  model.borrowed_values();
  model.borrowed_gradients();
  { model.first_of(number) } -> std::convertible_to<std::size_t>;
};

struct store_options {
  std::uint64_t seed = 1;                           // of the first values, with each parameter's name
  std::size_t bucket_bytes = std::size_t{1} << 20;  // gradients that are reduced together
  std::size_t whole_below = 0;                      // bytes: ZeRO 2 and 3 divide only the state of smaller parameters
  reduce_when reduce = reduce_when::each_micro_batch;  // of ZeRO 2 and 3; `last` keeps whole gradients
  reshard_when reshard = reshard_when::after_use;      // of ZeRO 3; `after_step` gathers once a step, and keeps
  gather_by gathers = gather_by::reach;                // of ZeRO 3; `collectives` even where ranks reach each other
  std::size_t gathers_ahead = 1;                       // of ZeRO 3: layers that are gathered while one is held
  tier parameters = tier::device;                      // where shards of ZeRO 3 lie,
  tier gradients = tier::device;                       // and shards of ZeRO 2 and 3
  file_memory files = {};                              // of shards in tier file
};

/// Throws usage_error where shards of `what`, which `from` and higher stages have, cannot lie in `in`.
inline void expect_shards_in(tier in, zero_stage stage, zero_stage from, const char* what, where at) {
  if (in != tier::device && stage < from)
    throw usage_error(std::string("shards of ") + what + " lie in tier " + name(in) + ", but belay::zero<" +
                          std::to_string(static_cast<int>(stage)) + "> has no shards of them: zero<" +
                          std::to_string(static_cast<int>(from)) + "> has",
                      at);
}

/// Where shards of a part lie.
struct shard_tiers {
  tier values = tier::device;
  tier gradients = tier::device;
};

/// Some of a store's parameters, and what ranks divide of them: made by `holds`.
template <lists_parameters Part>
struct held_parameters {
  Part* part;
  zero_stage stage;
  tier values;
  where at;
};

/// The parameters of `part`, such as a layer or a list of one's own, for a store of several such parts. `part` outlives
/// the store. Of ZeRO 3 shards of parameters lie in `where_it_is`, or where that is device, in the store's tier of
/// parameters. Throws usage_error for a lower tier of what is not divided.
template <lists_parameters Part, int Stage>
  requires(!lends_memory<Part>)
[[nodiscard]] held_parameters<Part> holds(Part& part, zero<Stage> divided, tier where_it_is = tier::device,
                                          where at = where::current()) {
  expect_shards_in(where_it_is, divided.stage, zero_stage::parameters, "parameters", at);
  return {&part, divided.stage, where_it_is, at};
}

/// The stage of a part, which says what is divided, and the tiers where the shards lie.
struct held_stage {
  zero_stage stage = zero_stage::none;
  shard_tiers tiers = {};
};
/// The stage and tiers of a part of a store with `options`. Throws usage_error as `expect_shards_in`.
[[nodiscard]] inline held_stage stage_in(zero_stage stage, tier values, const store_options& options, where at) {
  held_stage out{stage, {values == tier::device ? options.parameters : values, options.gradients}};
  expect_shards_in(out.tiers.values, stage, zero_stage::parameters, "parameters", at);
  expect_shards_in(out.tiers.gradients, stage, zero_stage::gradients, "gradients", at);
  return out;
}

/// The replica groups of a part of a store: of parameters that every rank of the expert axis replicates, of those that
/// are cut over it, and of small ones of both kinds, which are divided up to `of_small` at most.
inline constexpr std::size_t replica_groups_of_part = 4;
inline constexpr std::size_t first_small_replica_group = 2;
[[nodiscard]] constexpr std::size_t replica_group_of(axis_set cut) noexcept { return cut.has(axis::expert) ? 1 : 0; }
/// The directions by which the replica groups differ.
[[nodiscard]] constexpr axis_set cut_of_replica_group(std::size_t replica_group) noexcept {
  return replica_group % first_small_replica_group == 0 ? axis_set{} : axis_set{axis::expert};
}

/// A replica group has the ranks that reduce its gradients. What is divided is divided within a shard group of the
/// mesh, and its shards are replicated over the groups.
template <class Group>
[[nodiscard]] std::vector<bucket_replica_group<Group>> replica_groups_of(const mesh& mesh, zero_stage stage,
                                                                         zero_stage of_small, reduce_when reduces,
                                                                         shard_tiers tiers = {}) {
  using replica_group = bucket_replica_group<Group>;
  std::vector<replica_group> out;
  for (std::size_t number = 0; number < replica_groups_of_part; ++number) {
    const zero_stage divided = number < first_small_replica_group || stage < of_small ? stage : of_small;
    const Group& all = mesh.group(reduced_over(cut_of_replica_group(number)));
    if (!mesh.shape().replicates_shards()) {
      out.push_back({all, divided, reduces});
      continue;
    }
    const Group& shards = mesh.group(divided_over(cut_of_replica_group(number)));
    if (divided == zero_stage::none || shards.size() == 1)  // a group of one rank divides nothing
      out.push_back({all, zero_stage::none, reduces});
    else
      out.push_back({shards, divided, reduces, mesh.shard_replicas()});
  }
  for (replica_group& each : out) {
    if (each.stage >= zero_stage::parameters) each.values = tiers.values;
    if (each.stage >= zero_stage::gradients) each.gradients = tiers.gradients;
  }
  return out;
}
/// The replica groups of parts of several stages, one after the other: those of part `p` begin with the 4 p-th.
template <class Group, class StageOf>
[[nodiscard]] std::vector<bucket_replica_group<Group>> replica_groups_of_parts(const mesh& mesh,
                                                                               std::span<const held_stage> parts,
                                                                               const StageOf& stage_of,
                                                                               zero_stage of_small,
                                                                               reduce_when reduces) {
  std::vector<bucket_replica_group<Group>> all;
  for (const held_stage& part : parts)
    for (auto& one : replica_groups_of<Group>(mesh, stage_of(part.stage), of_small, reduces, part.tiers))
      all.push_back(std::move(one));
  return all;
}
/// Values that are never trained are divided with the others, or whole.
[[nodiscard]] constexpr zero_stage frozen_stage(zero_stage stage) noexcept {
  return stage == zero_stage::parameters ? stage : zero_stage::none;
}

}  // namespace belay::inline BELAY_ABI
