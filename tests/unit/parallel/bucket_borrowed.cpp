// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <vector>

#include "belay/parallel/bucket.hpp"

TEST_CASE("in borrowed memory a bucket is a run of neighbours, the last parameters first, and no element is padding") {
  // Four neighbours, a gap of seven elements, and one more parameter.
  const std::vector<belay::bucket_entry> entries{{13, 0, 1, 0}, {5000, 0, 2, 13}, {3, 0, 3, 5013}, {9, 0, 4, 5023}};
  const std::vector<belay::replica_group_shape> replica_groups{{3, belay::zero_stage::optimizer_state}};
  const belay::bucket_layout layout(entries, replica_groups, sizeof(float), std::size_t{1} << 20);
  REQUIRE(layout.buckets().size() == 2);
  const auto& last = layout.buckets()[0];
  CHECK(last.first == 5023);
  CHECK(last.count == 9);
  const auto& run = layout.buckets()[1];
  CHECK(run.first == 0);
  CHECK(run.count == 5016);
  CHECK(run.members == std::vector<std::size_t>{0, 1, 2});
  CHECK(layout.elements() == 5032);
  for (std::size_t p = 0; p < entries.size(); ++p) CHECK(layout.offset(p) == entries[p].offset);
  for (const auto& bucket : layout.buckets()) {
    std::size_t shared = 0, owned = 0;
    for (const std::size_t count : bucket.counts) shared += count;
    for (std::size_t rank = 0; rank < 3; ++rank)
      layout.each_owned(bucket, rank, [&](const belay::parameter_range& range) { owned += range.count; });
    CHECK(shared == bucket.count);
    CHECK(owned == bucket.count);
  }
}
