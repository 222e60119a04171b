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

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/bucket/family.hpp"
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/gathers/parameter_gathers.hpp"
#include "belay/parallel/lists_parameters.hpp"

namespace belay::inline BELAY_ABI {

/// What the ranks that replicate a parameter divide among themselves: nothing (0), the optimizer's state (1), gradients
/// too (2), parameters too (3): their layers are wrapped in `belay::gathers`.
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
};

/// Some of a store's parameters, and what ranks divide of them: made by `holds`.
template <lists_parameters Part>
struct held_parameters {
  Part* part;
  zero_stage stage;
  where at;
};

/// The parameters of `part`, such as a layer or a list of one's own, for a store of several such parts. `part` outlives
/// the store. Throws usage_error for another tier than device.
template <lists_parameters Part, int Stage>
requires(!lends_memory<Part>)
    [[nodiscard]] held_parameters<Part> holds(Part& part, zero<Stage> divided, tier where_it_is = tier::device,
                                              where at = where::current()) {
  if (where_it_is != tier::device)
    throw usage_error(std::string("a store holds parameters in tier device, and not in ") + name(where_it_is), at);
  return {&part, divided.stage, at};
}

/// The families of a store: dense parameters, which are replicated over data x expert, those of experts, over data, and
/// small ones of both kinds, which are divided up to `of_small` at most. What is divided is divided within a shard
/// group of the mesh, and its shares are replicated over the groups.
template <class Mesh>
[[nodiscard]] std::vector<bucket_family<typename Mesh::group_type>> families_of(const Mesh& mesh, zero_stage stage,
                                                                                zero_stage of_small,
                                                                                reduce_when reduces) {
  using group_type = typename Mesh::group_type;
  // A group of one rank divides nothing.
  const auto over = [&](const group_type& all, const group_type& shards, zero_stage divided) {
    if (divided == zero_stage::none || shards.size() == 1)
      return bucket_family<group_type>{all, zero_stage::none, reduces};
    return bucket_family<group_type>{shards, divided, reduces, mesh.shard_replicas()};
  };
  const zero_stage least = stage < of_small ? stage : of_small;
  if (!mesh.shape().replicates_shards())
    return {{mesh.replicas(), stage, reduces},
            {mesh.data(), stage, reduces},
            {mesh.replicas(), least, reduces},
            {mesh.data(), least, reduces}};
  return {over(mesh.replicas(), mesh.dense_shards(), stage), over(mesh.data(), mesh.shards(), stage),
          over(mesh.replicas(), mesh.dense_shards(), least), over(mesh.data(), mesh.shards(), least)};
}
/// The same of parts of several stages, one after the other: the families of part `p` begin with the 4 p-th.
inline constexpr std::size_t families_of_part = 4;
template <class Mesh, class StageOf>
[[nodiscard]] std::vector<bucket_family<typename Mesh::group_type>> families_of_parts(
    const Mesh& mesh, std::span<const zero_stage> stages, const StageOf& stage_of, zero_stage of_small,
    reduce_when reduces) {
  std::vector<bucket_family<typename Mesh::group_type>> all;
  for (const zero_stage stage : stages)
    for (auto& one : families_of(mesh, stage_of(stage), of_small, reduces)) all.push_back(std::move(one));
  return all;
}
/// Values that are never trained are divided with the others, or whole.
[[nodiscard]] constexpr zero_stage frozen_stage(zero_stage stage) noexcept {
  return stage == zero_stage::parameters ? stage : zero_stage::none;
}

}  // namespace belay::inline BELAY_ABI
