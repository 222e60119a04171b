// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/placement.hpp"

#include <doctest/doctest.h>

#include "belay/comm/axis.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/parallel/parameter.hpp"

namespace {

using belay::axis;
using stacked = belay::shard<0, axis::expert>;

static_assert(belay::placement<belay::replicate> && belay::placement<belay::shard<2>> && belay::placement<stacked> &&
              belay::placement<belay::partial<belay::sum>> && !belay::placement<int>);
static_assert(belay::is_shard<belay::shard<1>> && belay::is_shard<stacked> && !belay::is_shard<belay::replicate>);
static_assert(belay::is_partial<belay::partial<belay::maximum, axis::replica>> && !belay::is_partial<belay::shard<0>>);
static_assert(belay::is_shard_over<stacked, axis::expert> && !belay::is_shard_over<stacked, axis::data> &&
              belay::is_shard_over<belay::shard<2>, axis::data> &&
              !belay::is_shard_over<belay::replicate, axis::data> &&
              !belay::is_shard_over<belay::partial<belay::sum, axis::expert>, axis::expert>);
static_assert(belay::on_one_axis<belay::partial<belay::sum, axis::expert>, stacked> &&
              belay::on_one_axis<stacked, belay::replicate> && !belay::on_one_axis<stacked, belay::shard<0>>);

using both = belay::placed<stacked, belay::shard<1, axis::tensor>>;
static_assert(belay::placement<both> && belay::placement<belay::placed<>> && !belay::placement<belay::placed<int>> &&
              !belay::placement<belay::placed<both>>);
static_assert(belay::is_shard_over<both, axis::tensor> && !belay::is_shard_over<both, axis::data> &&
              belay::is_partial<belay::placed<stacked, belay::partial<belay::sum>>> && !belay::is_partial<both>);
static_assert(belay::cuts_of<both>() == 2 && belay::cuts_of<belay::placed<belay::replicate>>() == 0);
static_assert(belay::cut_directions<both>() == belay::axis_set{axis::expert, axis::tensor} &&
              belay::cut_directions<belay::shard<0>>() == belay::axis_set{axis::shard, axis::shard_replica});

}  // namespace

TEST_CASE("parameters are sorted by the axis over which they are cut, not by being cut") {
  const belay::parameter<float> dense{{.name = "norm", .shape = {4}}};
  const belay::parameter<float, stacked> expert{{.name = "up", .shape = {4, 2}}, {2, 2}};
  const belay::parameter<float, belay::shard<0, axis::tensor>> columns{{.name = "wq", .shape = {4, 2}}, {2, 2}};
  CHECK_FALSE(belay::sharded_over<axis::expert>(dense));
  CHECK(belay::sharded_over<axis::expert>(expert));
  CHECK_FALSE(belay::sharded_over<axis::expert>(columns));
  CHECK(belay::sharded_over<axis::tensor>(columns));
}

TEST_CASE("even parts cover every entry once, in order, and differ by at most one") {
  for (std::size_t parts : {1u, 2u, 3u, 5u, 8u})
    for (std::size_t total = 0; total < 20; ++total) {
      CAPTURE(parts);
      CAPTURE(total);
      std::size_t next = 0;
      for (std::size_t i = 0; i < parts; ++i) {
        const belay::local_part part = belay::even_part(total, parts, i);
        CHECK(part.first == next);
        CHECK(part.count >= total / parts);
        CHECK(part.count <= total / parts + 1);
        next += part.count;
      }
      CHECK(next == total);
    }
}
