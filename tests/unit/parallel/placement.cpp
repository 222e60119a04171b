// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/placement.hpp"

#include <doctest/doctest.h>

#include "belay/comm/reduction.hpp"

static_assert(belay::placement<belay::replicate> && belay::placement<belay::shard<2>> &&
              belay::placement<belay::partial<belay::sum>> && !belay::placement<int>);
static_assert(belay::is_shard<belay::shard<1>> && !belay::is_shard<belay::replicate>);
static_assert(belay::is_partial<belay::partial<belay::maximum>> && !belay::is_partial<belay::shard<0>>);

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
