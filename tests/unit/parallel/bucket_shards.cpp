// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How evenly the ranks of a replica group divide it, over all buckets.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "belay/parallel/bucket.hpp"

namespace {

using belay::parameter_chunk;
using belay::zero_stage;

constexpr std::size_t mebibyte = std::size_t{1} << 20;

std::vector<belay::replica_group_shape> sharded(std::initializer_list<std::size_t> ranks) {
  std::vector<belay::replica_group_shape> replica_groups;
  for (std::size_t count : ranks) replica_groups.push_back({count, zero_stage::optimizer_state});
  return replica_groups;
}

// Elements that each rank of a replica group owns.
std::vector<std::size_t> owned_by_rank(const belay::bucket_layout& layout, std::size_t replica_group) {
  std::vector<std::size_t> owned(layout.replica_groups()[replica_group].ranks);
  for (const auto& bucket : layout.buckets()) {
    if (bucket.replica_group != replica_group) continue;
    for (std::size_t rank = 0; rank < owned.size(); ++rank)
      layout.each_owned(bucket, rank, [&](const belay::parameter_range& range) { owned[rank] += range.count; });
  }
  return owned;
}

// The rule that does not hold: each bucket divided evenly for itself.
std::vector<std::size_t> owned_if_divided_by_bucket(const belay::bucket_layout& layout, std::size_t replica_group) {
  std::vector<std::size_t> owned(layout.replica_groups()[replica_group].ranks);
  for (const auto& bucket : layout.buckets()) {
    if (bucket.replica_group != replica_group) continue;
    for (std::size_t parameter : bucket.members)
      for (std::size_t chunk = 0; chunk < layout.size(parameter); chunk += parameter_chunk) {
        const std::size_t count = std::min(parameter_chunk, layout.size(parameter) - chunk);
        const std::size_t middle = layout.offset(parameter) - bucket.first + chunk + count / 2;
        owned[middle * owned.size() / bucket.count] += count;
      }
  }
  return owned;
}

std::size_t fullest(const std::vector<std::size_t>& owned) { return *std::max_element(owned.begin(), owned.end()); }

std::size_t sum_of(const std::vector<std::size_t>& owned) {
  return std::accumulate(owned.begin(), owned.end(), std::size_t{0});
}

}  // namespace

TEST_CASE("3,000 parameters of 64 Ki elements in buckets of 1 MiB are even on 256 and on 1,024 ranks") {
  const std::vector<belay::bucket_entry> entries(3000, {std::size_t{1} << 16, 0});
  for (std::size_t ranks : {256U, 1024U}) {
    CAPTURE(ranks);
    const belay::bucket_layout layout(entries, sharded({ranks}), sizeof(float), mebibyte);
    const std::vector<std::size_t> owned = owned_by_rank(layout, 0);
    const std::size_t mean = (entries.size() << 16) / ranks;
    CHECK(sum_of(owned) == entries.size() << 16);
    CHECK(fullest(owned) <= mean + parameter_chunk);
    CHECK(*std::min_element(owned.begin(), owned.end()) + parameter_chunk >= mean);
    CHECK(fullest(owned_if_divided_by_bucket(layout, 0)) > 3 * mean);
    const belay::ownership_unit unit(3);
    const belay::bucket_layout coarse(entries, sharded({ranks}), sizeof(float), mebibyte, unit);
    CHECK(fullest(owned_by_rank(coarse, 0)) <= mean + unit.elements());
  }
}

TEST_CASE("no rank owns more than the mean of its replica group and one chunk or larger unit, whatever the sizes") {
  std::mt19937 random(20);
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(random()) % limit; };
  std::size_t broken_by_the_other_rule = 0;
  for (int round = 0; round < 300; ++round) {
    const std::size_t ranks = round % 3 == 0 ? 1 + below(4) : 1 + below(300);
    const std::size_t others = 1 + below(40);
    std::vector<belay::bucket_entry> entries(1 + below(200));
    for (belay::bucket_entry& entry : entries) {
      const std::size_t sizes[] = {0,
                                   1,
                                   3,
                                   parameter_chunk - 1,
                                   parameter_chunk,
                                   parameter_chunk + 1,
                                   below(100),
                                   below(20000),
                                   parameter_chunk * below(20),
                                   below(200000)};
      entry = {sizes[below(std::size(sizes))], below(4) == 0 ? 1U : 0U};
    }
    const std::size_t bucket_bytes = std::size_t{1} << below(21);
    CAPTURE(round);
    CAPTURE(ranks);
    CAPTURE(bucket_bytes);
    const belay::ownership_unit unit(round % 2 == 0 ? 0 : static_cast<unsigned>(below(5)));
    CAPTURE(unit.k());
    const belay::bucket_layout layout(entries, sharded({ranks, others}), sizeof(float), bucket_bytes, unit);
    for (std::size_t replica_group : {0U, 1U}) {
      const std::vector<std::size_t> owned = owned_by_rank(layout, replica_group);
      std::size_t elements = 0;
      for (const belay::bucket_entry& entry : entries)
        elements += entry.replica_group == replica_group ? entry.elements : 0;
      CHECK(sum_of(owned) == elements);
      CHECK(fullest(owned) <= elements / owned.size() + unit.elements());
      const std::size_t other = fullest(owned_if_divided_by_bucket(layout, replica_group));
      broken_by_the_other_rule += other > elements / owned.size() + unit.elements() ? 1 : 0;
    }
  }
  CHECK(broken_by_the_other_rule > 100);
}

TEST_CASE("a replica group is divided the same whatever other replica groups lie between its buckets") {
  const auto counts_of = [](const belay::bucket_layout& layout, std::size_t replica_group) {
    std::vector<std::vector<std::size_t>> counts;
    for (const auto& bucket : layout.buckets())
      if (bucket.replica_group == replica_group) counts.push_back(bucket.counts);
    return counts;
  };
  std::vector<belay::bucket_entry> alone;
  std::vector<belay::bucket_entry> mixed;
  for (std::size_t p = 0; p < 50; ++p) {
    alone.push_back({3 + 1777 * p, 0});
    mixed.push_back({3 + 1777 * p, 1});
    if (p % 3 != 0) mixed.push_back({100000, 0});
  }
  const belay::bucket_layout one(alone, sharded({7}), sizeof(float), mebibyte / 4);
  const belay::bucket_layout two(mixed, sharded({3, 7}), sizeof(float), mebibyte / 4);
  CHECK(counts_of(one, 0).size() > 10);
  CHECK(counts_of(one, 0) == counts_of(two, 1));
}

TEST_CASE("a parameter that no memory holds is divided at once, and a replica group without ranks is refused") {
  const std::vector<belay::bucket_entry> entries{{std::size_t{1} << 50, 0}, {77, 0}};
  const std::size_t ranks = std::size_t{1} << 14;
  const belay::bucket_layout layout(entries, sharded({ranks}), sizeof(float), mebibyte);
  const std::size_t first = 0;
  const std::size_t last = ranks - 1;
  const std::size_t mean = (std::size_t{1} << 50) / ranks;
  for (std::size_t rank : {first, last}) {
    CHECK(layout.owned_elements(std::span(&rank, 1)) >= mean - parameter_chunk);
    CHECK(layout.owned_elements(std::span(&rank, 1)) <= mean + parameter_chunk);
  }
  CHECK_THROWS_WITH_AS((belay::bucket_layout{entries, sharded({0}), sizeof(float), mebibyte}),
                       doctest::Contains("replica group 0 has no ranks"), belay::usage_error);
}
