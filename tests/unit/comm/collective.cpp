// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/comm/collective.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/comm/rehearsal.hpp"

static_assert(belay::sum.apply<std::int8_t>(127, 1) == -128);
static_assert(belay::sum.apply<std::uint16_t>(65535, 1) == 0);
static_assert(belay::minimum.apply(3, 2) == 2 && belay::maximum.apply(3.0, 2.0) == 3.0);
static_assert(belay::product.apply<std::int8_t>(64, 2) == -128 &&
              belay::product.apply<std::uint16_t>(65535, 65535) == 1);
static_assert(belay::product.apply<std::int64_t>(std::int64_t{1} << 62, 4) == 0);
static_assert(belay::average.apply<std::int8_t>(127, 1) == -128 && belay::average.apply(1.0F, 2.0F) == 3.0F);
// Towards zero, by numbers of ranks that the type itself cannot hold.
static_assert(belay::average.finish<std::int32_t>(-7, 2) == -3 && belay::average.finish<std::uint8_t>(255, 256) == 0);
static_assert(belay::average.finish<std::int8_t>(-128, 200) == 0 &&
              belay::average.finish<std::int8_t>(-128, 128) == -1);
static_assert(belay::average.finish<std::uint64_t>(~std::uint64_t{0}, 1) == ~std::uint64_t{0});
static_assert(belay::average.finish(1.0F, 3) == 1.0F / 3.0F);
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
    belay::reduce(world, part, belay::product, 1);
    belay::gather(world, part, all, 2);
    belay::scatter(world, all, part, 2);
    belay::exchange(world, {});
    auto started = belay::start_all_reduce(world, vector, belay::sum);
    std::move(started).wait();
    int token = 5 + rank.number();
    if (rank.number() == 0) belay::send_to(world, 2, std::span<const int>(&token, 1), 4);
    if (rank.number() == 2) belay::receive_from(world, 0, std::span(&token, 1), 4);
    return vector[3] == 9.0F && array[1] == 2.0 && numbers[5] == 3 && token == (rank.number() == 1 ? 6 : 5);
  });
  for (bool ok : results) CHECK(ok);
}

TEST_CASE("every free function has a started one that gives the same") {
  const auto results = belay::host::world{3}.run([](auto& rank) {
    const auto& world = rank.world();
    const std::vector<std::size_t> counts(3, 2);
    std::vector<float> a(6), part(2);
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(7 * rank.number() + static_cast<int>(i));
    std::vector<float> b = a, other_part = part, all(6), other_all(6);
    belay::barrier(world);
    belay::start_barrier(world).wait();
    belay::all_reduce(world, a, belay::average);
    belay::start_all_reduce(world, b, belay::average).wait();
    belay::reduce_scatter(world, a, part, belay::sum);
    belay::start_reduce_scatter(world, b, other_part, belay::sum).wait();
    belay::reduce_scatter_v(world, a, counts, belay::maximum);
    belay::start_reduce_scatter_v(world, b, counts, belay::maximum).wait();
    belay::reduce(world, a, belay::product, 1);
    belay::start_reduce(world, b, belay::product, 1).wait();
    belay::all_gather(world, part, all);
    belay::start_all_gather(world, other_part, other_all).wait();
    belay::all_gather_v(world, a, counts);
    belay::start_all_gather_v(world, b, counts).wait();
    belay::all_to_all(world, a, a);
    belay::start_all_to_all(world, b, b).wait();
    belay::broadcast(world, part, 2);
    belay::start_broadcast(world, other_part, 2).wait();
    belay::all_to_all_v(world, a, counts, all, counts);
    belay::start_all_to_all_v(world, b, counts, other_all, counts).wait();
    const bool same = a == b && part == other_part && all == other_all;
    belay::gather(world, part, all, 0);
    belay::start_gather(world, other_part, other_all, 0).wait();
    belay::scatter(world, all, part, 0);
    belay::start_scatter(world, other_all, other_part, 0).wait();
    belay::start_exchange(world, {}).wait();
    return same && part == other_part && all == other_all;
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
    CHECK_THROWS_AS(world.all_to_all(std::span(x).first(5), std::span(x).last(5)), belay::usage_error);
    CHECK_THROWS_AS(world.all_gather(std::span(x).first(5), std::span(x).last(5)), belay::usage_error);
    CHECK_THROWS_AS(world.gather(std::span(x).first(5), std::span(x).last(5), 0), belay::usage_error);
    CHECK_THROWS_AS(world.scatter(std::span(x).first(5), std::span(x).last(5), 0), belay::usage_error);
    CHECK_THROWS_AS(world.gather(x, std::span(y), 0), belay::usage_error);
    CHECK_THROWS_AS(world.scatter(x, std::span(y), 0), belay::usage_error);
    for (int root : {-1, 1}) {
      CHECK_THROWS_AS(world.broadcast(std::span(x), root), belay::usage_error);
      CHECK_THROWS_AS(world.reduce(std::span(x), belay::sum, root), belay::usage_error);
      CHECK_THROWS_AS(world.gather(x, std::span(x), root), belay::usage_error);
      CHECK_THROWS_AS(world.scatter(x, std::span(x), root), belay::usage_error);
    }
    CHECK_THROWS_AS(world.send(1, std::span(x)), belay::usage_error);
    CHECK_THROWS_AS(world.receive(-1, std::span(x)), belay::usage_error);
    const belay::p2p stray = belay::p2p::send(3, std::span(x));
    CHECK_THROWS_AS(world.exchange(std::span(&stray, 1)), belay::usage_error);
    world.barrier();  // the group is usable
  });
}
