// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The group of ranks among which a bucket is reduced.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "belay/comm/communicator.hpp"
#include "belay/comm/group_interface.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/bucket/layout.hpp"

namespace belay::inline BELAY_ABI {

/// A communicator that serves gradient buckets of T: it can start all_reduce, reduce_scatter_v and all_gather_v, and
/// can all_gather words.
template <class Group, class T>
concept reduces_buckets = communicator<Group> && can_all_gather<Group, std::uint64_t> &&
    requires(const Group& group, std::span<compute_type_t<T>> sums, std::span<T> values,
             std::span<const std::size_t> counts, const start_order& how) {
  { group.start_all_reduce(sums, sum, how) } -> std::same_as<pending>;
  { group.start_reduce_scatter_v(sums, counts, sum, how) } -> std::same_as<pending>;
  { group.start_all_gather_v(values, counts, how) } -> std::same_as<pending>;
};

/// True, or it does not compile and says what the communicator lacks.
template <class Group, class T>
constexpr bool serves_buckets() {
  static_assert(reduces_buckets<Group, T>,
                "gradient buckets need a communicator that can start all_reduce, reduce_scatter_v and all_gather_v, "
                "and can all_gather words");
  if constexpr (reduces_buckets<Group, T>) {
    static_assert(sums_alike<Group>,
                  "ranks that replicate a parameter update it with the same bits: take a communicator with "
                  "sums_in_rank_order, as belay::host and belay::mpi have, or one that promises sums_alike");
    static_assert(has_varying_counts<Group>,
                  "the ranks of a replica group own different numbers of gradients: take a communicator with "
                  "has_varying_counts, as belay::host and belay::mpi have");
  }
  return true;
}
/// Asks a group of what `serves_buckets` asks its type. Throws usage_error.
template <class Group>
void expect_serves_buckets(const Group& group, where at) {
  expect_promise(group, &group_traits::sums_alike,
                 "ranks that replicate a parameter update it with the same bits: take a communicator with "
                 "sums_in_rank_order, as belay::host and belay::mpi have, or one that promises sums_alike",
                 at);
  expect_promise(group, &group_traits::has_varying_counts,
                 "the ranks of a replica group own different numbers of gradients: take a communicator with "
                 "has_varying_counts, as belay::host and belay::mpi have",
                 at);
}

/// A replica group: the ranks that replicate some of the parameters, and the part of their state that they divide.
/// Where there are `copies`, `group` is one of several shard groups, and `copies` are the ranks that hold the same
/// shard, one of each. Groups are handles, whose rank outlives the buckets.
template <class Group>
struct bucket_replica_group {
  Group group;
  zero_stage stage;
  reduce_when reduces;
  std::shared_ptr<const Group> copies;  // null: none
  tier values = tier::device;           // of shards of these,
  tier gradients = tier::device;        // and of those

  bucket_replica_group(Group among, zero_stage divided = zero_stage::none,
                       reduce_when when = reduce_when::each_micro_batch)
      : group(std::move(among)), stage(divided), reduces(when) {}
  bucket_replica_group(Group among, zero_stage divided, reduce_when when, Group equal)
      : group(std::move(among)), stage(divided), reduces(when), copies(std::make_shared<Group>(std::move(equal))) {}

  /// Calls `visit(group)` for each that has several ranks, in the order in which all of them do.
  template <class Visit>
  void each_group(Visit&& visit) const {
    if (group.size() > 1) visit(group);
    if (copies && copies->size() > 1) visit(*copies);
  }

  operator replica_group_shape() const noexcept {
    return {static_cast<std::size_t>(group.size()), stage, reduces, values, gradients};
  }
};

}  // namespace belay::inline BELAY_ABI
