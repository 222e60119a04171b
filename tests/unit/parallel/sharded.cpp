// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/sharded.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "belay/comm/rehearsal.hpp"
#include "support/fake_group.hpp"

TEST_CASE("a sharded view knows its part of an uneven split, empty parts included") {
  fake::shared_state shared(3);
  fake::queue queue;
  const std::array<std::size_t, 3> counts{4, 0, 3};
  const belay::shard_counts split{counts};
  CHECK(split.total() == 7);
  CHECK(split.part(0) == belay::local_part{0, 4});
  CHECK(split.part(1) == belay::local_part{4, 0});
  CHECK(split.part(2) == belay::local_part{4, 3});
  std::vector<float> memory(7);
  belay::sharded<float, belay::shard<0>, fake::group> part{fake::group(shared, queue, 2),
                                                              std::span(memory).first(3), split};
  CHECK(part.global_size() == 7);
  CHECK(part.own() == belay::local_part{4, 3});
  belay::sharded<float, belay::replicate, fake::group> all{fake::group(shared, queue, 2), memory, split};
  CHECK(all.local().size() == 7);
}

TEST_CASE("memory or counts that do not fit the split are refused") {
  fake::shared_state shared(3);
  fake::queue queue;
  const fake::group group(shared, queue, 0);
  const std::array<std::size_t, 3> counts{4, 0, 3};
  const std::array<std::size_t, 2> two{4, 3};
  std::vector<float> memory(7);
  using cut_vector = belay::sharded<float, belay::shard<0>, fake::group>;
  using all = belay::sharded<float, belay::replicate, fake::group>;
  CHECK_THROWS_AS(cut_vector(group, memory, belay::shard_counts{counts}), belay::usage_error);
  CHECK_THROWS_AS(all(group, std::span(memory).first(6), belay::shard_counts{counts}), belay::usage_error);
  CHECK_THROWS_AS(all(group, memory, belay::shard_counts{two}), belay::usage_error);
}

TEST_CASE("an even split counts whole rows") {
  std::array<std::size_t, 3> counts{};
  const belay::shard_counts split = belay::even_counts(4, 5, counts);
  CHECK(counts == std::array<std::size_t, 3>{10, 5, 5});
  CHECK(split.total() == 20);
}

TEST_CASE("counts and rows that wrap round are refused") {
  std::vector<std::size_t> counts(3);
  CHECK_THROWS_WITH_AS(static_cast<void>(belay::even_counts(std::size_t{1} << 40, std::size_t{1} << 30, counts)),
                       doctest::Contains("1099511627776 rows of 1073741824 elements are more"), belay::size_error);
  counts = {SIZE_MAX, 1, 6};
  CHECK(belay::shard_counts{counts}.total() > belay::largest_size);
  const belay::rehearsal::rank rank(2, 3);
  std::vector<float> six(6);
  using whole = belay::sharded<float, belay::replicate, belay::rehearsal::group>;
  using cut_vector = belay::sharded<float, belay::shard<0>, belay::rehearsal::group>;
  CHECK_THROWS_AS((whole{rank.world(), six, belay::shard_counts{counts}}), belay::size_error);
  CHECK_THROWS_AS((cut_vector{rank.world(), six, belay::shard_counts{counts}}), belay::size_error);
}
