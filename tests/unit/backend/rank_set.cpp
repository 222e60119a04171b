// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <cstddef>
#include <span>
#include <vector>

#include "belay/backend/host/memory/address_map.hpp"
#include "belay/backend/host/processes.hpp"
#include "belay/backend/host/world.hpp"
#include "belay/comm/collective.hpp"
#include "belay/comm/symmetric.hpp"

using belay::host::rank_set;

TEST_CASE("a group's memory is seen by the ranks that are in that group") {
  const auto of = [](std::vector<int> members, std::uint32_t group) { return rank_set::of(members, group); };
  CHECK(of({0, 1, 2}, 0).includes(of({1, 2}, 3)));
  CHECK(of({0, 1, 2}, 4).includes(of({0, 2}, 5)));
  CHECK(!of({0, 2}, 5).includes(of({0, 1, 2}, 0)));
  CHECK(!of({0, 2}, 5).includes(of({0, 1}, 6)));
  CHECK(!rank_set{}.includes(of({0}, 1)));
  // Of ranks that have no bit nothing is known but their group.
  CHECK(of({3, 70}, 7).includes(of({3, 70}, 7)));
  CHECK(!of({3, 70}, 7).includes(of({3, 71}, 8)));
  CHECK(of({3, 70}, 7).includes(of({3}, 9)));
  CHECK(of({0}, 0).includes(of({3, 70}, 7)));
}

TEST_CASE("memory of one group's heap can be given to operations of any other") {
  for (const std::size_t count : {std::size_t{10}, std::size_t{700}, std::size_t{100'001}}) {
    CAPTURE(count);
    const auto body = [count](auto& rank) {
      const auto world = rank.world();
      const int me = world.rank();
      const auto part = me == 1 ? rank.group(std::vector<int>{1}) : rank.group(std::vector<int>{0, 2});
      belay::symmetric_heap heap(part, {.bytes = count * sizeof(float) + 65536});
      const std::span<float> mine(reinterpret_cast<float*>(heap.lease(count * sizeof(float), "mine").local()), count);
      std::vector<float> all(3 * count);
      std::size_t wrong = 0;
      const auto fill = [&](float value) {
        for (float& each : mine) each = value;
      };
      const auto expect = [&](std::span<const float> seen, float value) {
        for (const float each : seen) wrong += each != value ? 1U : 0U;
      };
      const auto own = static_cast<float>(me + 1);
      fill(own);
      world.all_reduce(mine, belay::sum);
      expect(mine, 6);
      fill(own);
      world.broadcast(mine, 1);
      expect(mine, 2);
      fill(own);
      world.all_gather(std::span<const float>(mine), std::span<float>(all));
      for (std::size_t q = 0; q < 3; ++q) expect(std::span(all).subspan(q * count, count), static_cast<float>(q + 1));
      if (me == 0) world.send(1, mine);
      if (me == 1) world.receive(0, mine);
      if (me == 1) expect(mine, 1);
      fill(own);
      world.start_all_reduce(mine, belay::sum).wait();
      expect(mine, 6);
      fill(own);
      part.all_reduce(mine, belay::sum);
      expect(mine, me == 1 ? 2.0F : 4.0F);
      return wrong;
    };
    for (const std::size_t wrong : belay::host::world{3}.run(body)) CHECK(wrong == 0);
    for (const std::size_t wrong : belay::host::processes{3}.run(body)) CHECK(wrong == 0);
  }
}
