// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where every parameter lies in the memory of its buckets, which rank owns which range of it, and in what order buckets
// are launched.
#pragma once

#include "belay/parallel/bucket/layout.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL std::size_t bucket_layout::owned_elements(std::span<const std::size_t> rank_in_replica_group) const {
  std::size_t count = 0;
  for (const bucket& b : buckets_)
    each_owned(b, rank_in_replica_group[b.replica_group], [&](const parameter_range& range) { count += range.count; });
  return count;
}

BELAY_DECL std::uint64_t bucket_layout::fingerprint(std::size_t replica_group) const {
  std::vector<std::size_t> place(sizes_.size());  // parameters of the replica group before each
  std::vector<bool> in_replica_group(sizes_.size());
  for (const bucket& b : buckets_)
    for (std::size_t parameter : b.members) in_replica_group[parameter] = b.replica_group == replica_group;
  for (std::size_t p = 1; p < place.size(); ++p) place[p] = place[p - 1] + (in_replica_group[p - 1] ? 1 : 0);
  content_hash hash;
  hash.add(replica_groups_[replica_group].ranks)
      .add(static_cast<std::uint64_t>(replica_groups_[replica_group].stage))
      .add(unit_.k());
  hash.add(static_cast<std::uint64_t>(replica_groups_[replica_group].reduces));
  for (const bucket& b : buckets_) {
    if (b.replica_group != replica_group) continue;
    hash.add(b.count).add(b.members.size());
    for (std::size_t parameter : b.members)
      hash.add(place[parameter]).add(sizes_[parameter]).add(identities_[parameter]);
    for (std::size_t count : b.counts) hash.add(count);
  }
  return hash.value();
}

BELAY_DECL std::string bucket_layout::too_much(std::size_t parameter, std::size_t elements, std::size_t element_bytes) {
  return "the buckets of parameter number " + std::to_string(parameter) + " (" + std::to_string(elements) +
         " elements of " + std::to_string(element_bytes) + " bytes) and those after it are";
}

BELAY_DECL void bucket_layout::place(bucket& b, even_shards& shards) {
  if (borrowed_) {
    std::reverse(b.members.begin(), b.members.end());  // they were found from the end of the memory
    elements_ = greater_of(elements_, b.first + b.count);
  } else {
    b.first = elements_;
    for (std::size_t parameter : b.members) {
      offsets_[parameter] = elements_;
      elements_ += padded(sizes_[parameter]);
    }
  }
  const replica_group_shape replica_group = replica_groups_[b.replica_group];
  if (replica_group.stage == zero_stage::none) return;
  b.counts = std::vector<std::size_t>(replica_group.ranks);
  std::size_t all = 0;
  for (std::size_t parameter : b.members) all += sizes_[parameter];
  shards.begin(all);
  for (std::size_t parameter : b.members) {
    const std::size_t unit = unit_.elements();
    const std::size_t tail = sizes_[parameter] % unit;
    shards.give(sizes_[parameter] / unit, unit,
                [&](std::size_t rank, std::size_t units) { b.counts[rank] += units * unit; });
    if (tail > 0) shards.give(1, tail, [&](std::size_t rank, std::size_t) { b.counts[rank] += padded(tail); });
  }
  b.before = std::vector<std::size_t>(replica_group.ranks);
  for (std::size_t rank = 1; rank < replica_group.ranks; ++rank)
    b.before[rank] = b.before[rank - 1] + b.counts[rank - 1];
}

BELAY_DECL void bucket_layout::place_reductions() noexcept {
  gradient_elements_ = elements_;
  for (bucket& b : buckets_) {
    b.reduced_at = b.first;
    if (!checked(check_level::local) || replica_groups_[b.replica_group].ranks < 2 ||
        replica_group_of(b).divides_gradients())
      continue;
    b.reduced_at = gradient_elements_;
    gradient_elements_ += b.count;
  }
}

}  // namespace belay::inline BELAY_ABI
