// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Compares what the ranks that replicate parameters must agree on: layout and first values once and in all builds, by a
// hash of each; divisors with checks across ranks (BELAY_CHECKS 2). Otherwise gradients of different parameters may be
// added, or replicas that were never equal may drift apart, and the loss is merely worse.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/bucket/member.hpp"
#include "belay/parallel/bucket/replica_group.hpp"
#include "belay/parallel/divisor.hpp"
#include "belay/parallel/group_memory.hpp"
#include "belay/parallel/rank_comparison.hpp"

namespace belay::inline BELAY_ABI {

/// One replica group's parameters on this rank, compared with those of the replica group's other ranks.
template <class T>
class replica_check {
 public:
  template <class Group>
  replica_check(const bucket_layout& layout, std::span<const bucket_member<T>> members, std::size_t replica_group,
                const Group& group, where at)
      : replica_group_(replica_group), layout_(layout.fingerprint(replica_group)) {
    std::vector<T> room;
    for (const bucket_member<T>& member : members) {
      if (member.replica_group() != replica_group) continue;
      const trainable_parameter<T>& p = member.parameter();
      parameters_.push_back(&p);
      kinds_.push_back(content_hash().add(member.identity()).add(p.local_size()).value());
      // Of divided values each rank has others.
      if (p.divided()) {
        values_.push_back(0);
        continue;
      }
      const T* const values = host_view_of(group, static_cast<const T*>(p.value()), p.local_size(), room, at);
      values_.push_back(content_hash().add_bytes(values, p.local_size() * sizeof(T)).value());
    }
  }

  /// How the ranks of the group differ, in a sentence, or "". All ranks get the same answer, each with its own
  /// parameter's name. Collective.
  template <class Group>
  [[nodiscard]] std::string difference(const Group& group, where at) const {
    rank_comparison compared;
    const std::array<std::uint64_t, 2> all{layout_, hash_of(values_)};
    if (!compared.differ(group, all, at)) return {};
    if (compared.first() == 0) return difference_of_layouts(compared, group, at);
    static_cast<void>(compared.differ(group, values_, at));
    return compared.ranks(group) + " begin with different values of parameter " +
           parameters_[compared.first()]->name() + " in " + replica_group_text() +
           ": initialise it with one seed, or fill it from one source, on the ranks that replicate it";
  }

 private:
  template <class Group>
  [[nodiscard]] std::string difference_of_layouts(rank_comparison& compared, const Group& group, where at) const {
    const std::array<std::uint64_t, 1> count{kinds_.size()};
    std::size_t common = kinds_.size();
    std::string counts;
    if (compared.differ(group, count, at)) {
      common = static_cast<std::size_t>(compared.least());
      counts = compared.text(group);
    }
    if (compared.differ(group, std::span(kinds_).first(common), at))
      return compared.ranks(group) + " list different parameters in " + replica_group_text() + ": " +
             parameter_text(compared.first()) +
             "; names, sizes, order and decay must be equal on the ranks that replicate them";
    if (!counts.empty())
      return "the ranks of " + replica_group_text() + " list different numbers of parameters (" + counts +
             "): " + parameter_text(common);
    static_cast<void>(compared.differ(group, std::span(&layout_, 1), at));
    return compared.ranks(group) + " cut the parameters of " + replica_group_text() +
           " into different buckets: bucket_bytes, the ZeRO stage and the norm's unit must be equal";
  }

  [[nodiscard]] std::string replica_group_text() const { return "replica group " + std::to_string(replica_group_); }
  // `number` counts within the replica group.
  [[nodiscard]] std::string parameter_text(std::size_t number) const {
    if (number >= parameters_.size()) return "its number " + std::to_string(number) + " is not listed here";
    return "its number " + std::to_string(number) + " is " + parameters_[number]->name() + " of " +
           std::to_string(parameters_[number]->local_size()) + " elements here";
  }
  [[nodiscard]] static std::uint64_t hash_of(const std::vector<std::uint64_t>& words) noexcept {
    content_hash hash;
    for (std::uint64_t word : words) hash.add(word);
    return hash.value();
  }

  std::size_t replica_group_;
  std::uint64_t layout_;
  std::vector<const trainable_parameter<T>*> parameters_;  // in model order
  std::vector<std::uint64_t> kinds_;                       // identity and size of each
  std::vector<std::uint64_t> values_;
};

/// Throws usage_error on all ranks of a replica group if they list different parameters (names, sizes, order, decay),
/// cut them into different buckets, or begin with different values. Collective over each of the `replica_groups` in
/// turn.
template <class T, class ReplicaGroups>
void check_replicas(const bucket_layout& layout, std::span<const bucket_member<T>> members,
                    const ReplicaGroups& replica_groups, where at) {
  std::string found;  // every replica group is compared before anything is thrown: its other ranks wait
  for (std::size_t f = 0; f < replica_groups.size(); ++f) {
    replica_groups[f].each_group([&](const auto& group) {
      const std::string one = replica_check<T>(layout, members, f, group, at).difference(group, at);
      if (found.empty()) found = one;
    });
  }
  if (!found.empty()) throw usage_error(found, at);
}

/// How the divisors of the group's ranks differ, or "". A rank without a divisor gives `rank_comparison::abstains`.
/// Collective over `group`.
template <class Group>
[[nodiscard]] std::string difference_of_targets(rank_comparison& compared, const Group& group, std::uint64_t targets,
                                                where at) {
  const std::uint64_t own[1] = {targets};
  if (!compared.differ(group, own, at)) return {};
  return "target_tokens differ between ranks (" + compared.text(group) +
         "): it is the number of the whole global batch, equal on all ranks; finish(local_targets{n}, group) sums what "
         "each of them has";
}

/// How the divisors of any replica group's ranks differ, or "": the first difference that is found. A rank without a
/// divisor gives `rank_comparison::abstains`. Collective over each of the `replica_groups` in turn.
template <class Group>
[[nodiscard]] std::string difference_of_targets(rank_comparison& compared,
                                                const std::vector<bucket_replica_group<Group>>& replica_groups,
                                                std::uint64_t targets, where at) {
  std::string found;
  for (const bucket_replica_group<Group>& replica_group : replica_groups)
    replica_group.each_group([&](const Group& group) {
      const std::string one = difference_of_targets(compared, group, targets, at);
      if (found.empty()) found = one;
    });
  return found;
}

/// Throws usage_error where the ranks of a replica group have different numbers of micro-batches, and what they do in
/// each is done by all. `why` says what that is, and what to do. Collective over all replica groups.
template <class Group>
void expect_one_number(rank_comparison& compared, const std::vector<bucket_replica_group<Group>>& replica_groups,
                       std::size_t micro_batches, const char* why, where at) {
  std::string found;
  for (const bucket_replica_group<Group>& replica_group : replica_groups)
    replica_group.each_group([&](const Group& group) {
      const std::uint64_t own[1] = {micro_batches};
      if (compared.differ(group, own, at) && found.empty())
        found = "ranks have different numbers of micro-batches (" + compared.text(group) + "), and " + why;
    });
  if (!found.empty()) throw usage_error(found, at);
}

/// The targets of all ranks that divide a batch: more than 64 bits hold, and it does not wrap round. Collective.
template <class BatchRanks>
checked_size sum_of_targets(local_targets own, const BatchRanks& batch_ranks, where at) {
  constexpr std::uint64_t half = std::uint64_t{1} << 32;  // in halves no sum wraps round
  std::uint64_t total[2] = {own.count() % half, own.count() / half};
  if constexpr (can_all_reduce<BatchRanks, std::uint64_t>)
    control_of(batch_ranks).all_reduce(std::span<std::uint64_t>(total), sum, at);
  return checked_size(total[0]) + checked_size(total[1]) * half;
}

}  // namespace belay::inline BELAY_ABI
