// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/comm/collective.hpp"

#include <doctest/doctest.h>

#include <array>
#include <limits>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/comm/rehearsal.hpp"

static_assert(belay::sum.apply<std::int8_t>(127, 1) == -128);
static_assert(belay::sum.apply<std::uint16_t>(65535, 1) == 0);
static_assert(belay::minimum.apply(3, 2) == 2 && belay::maximum.apply(3.0, 2.0) == 3.0);
static_assert(!belay::reducible<belay::fp8_e4m3> && !belay::reducible<bool> && belay::reducible<belay::bf16>);

TEST_CASE("minimum and maximum keep a NaN from either side") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (float x : {belay::minimum.apply(nan, 1.0F), belay::minimum.apply(1.0F, nan), belay::maximum.apply(nan, 1.0F),
                  belay::maximum.apply(1.0F, nan)}) {
    CHECK(x != x);
  }
}

TEST_CASE("the free functions take containers, arrays, spans and views") {
  const auto results = belay::host::world{3}.run([](auto& rank) {
    const auto& world = rank.world();
    std::vector<float> vector(4, 1.0F);
    std::array<double, 2> array{1.0, 2.0};
    std::array<int, 6> numbers{1, 1, 1, 1, 1, 1};
    belay::view<int, 2> view(numbers.data(), {2, 3});
    belay::all_reduce(world, vector, belay::sum);
    belay::all_reduce(world, std::span(array), belay::maximum);
    belay::all_reduce(world, view, belay::sum);
    belay::barrier(world);
    belay::broadcast(world, view.rows(0, 1), 2);
    const std::vector<float> mine(2, float(rank.number()));
    std::vector<float> all(6);
    belay::all_gather(world, mine, all);
    const std::vector<std::size_t> counts(3, 2);
    std::vector<float> swapped(6);
    belay::all_to_all(world, all, swapped);
    belay::all_to_all_v(world, all, counts, swapped, counts);
    belay::all_gather_v(world, all, counts);
    belay::reduce_scatter_v(world, all, counts, belay::sum);
    std::vector<float> part(2);
    belay::reduce_scatter(world, swapped, part, belay::sum);
    belay::exchange(world, {});
    auto started = belay::start_all_reduce(world, vector, belay::sum);
    std::move(started).wait();
    return vector[3] == 9.0F && array[1] == 2.0 && numbers[5] == 3;
  });
  for (bool ok : results) CHECK(ok);
}

TEST_CASE("arguments that make no sense on one rank are usage errors there") {
  belay::host::world{1}.run([](auto& rank) {
    const auto& world = rank.world();
    std::vector<float> x(6), y(5);
    const std::vector<std::size_t> two{3, 3}, one{5};
    CHECK_THROWS_AS(world.reduce_scatter_v(std::span(x), two, belay::sum), belay::usage_error);
    CHECK_THROWS_AS(world.all_gather_v(std::span(x), one), belay::usage_error);
    CHECK_THROWS_AS(world.all_gather(x, std::span(y)), belay::usage_error);
    CHECK_THROWS_AS(world.reduce_scatter(x, std::span(y), belay::sum), belay::usage_error);
    CHECK_THROWS_AS(world.all_to_all(x, std::span(y)), belay::usage_error);
    CHECK_THROWS_AS(world.all_to_all(x, std::span(x)), belay::usage_error);
    CHECK_THROWS_AS(world.all_gather(std::span(x).first(5), std::span(x).last(5)), belay::usage_error);
    CHECK_THROWS_AS(world.broadcast(std::span(x), 1), belay::usage_error);
    const belay::p2p stray = belay::p2p::send(3, std::span(x));
    CHECK_THROWS_AS(world.exchange(std::span(&stray, 1)), belay::usage_error);
    world.barrier();  // the group is usable
  });
}
