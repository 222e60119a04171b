// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/redistribute.hpp"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "support/fake_group.hpp"

namespace {

using belay::partial;
using belay::replicate;
using belay::shard;
template <class Placement>
using tensor = belay::sharded<double, Placement, fake::group>;

// Every way to cut some elements: even, uneven, with empty ranks, fewer elements than ranks, none at all.
const std::vector<std::vector<std::size_t>> splits{{5},       {0},       {3, 4},    {0, 1},       {2, 2, 1},
                                                   {0, 0, 7}, {0, 0, 0}, {1, 0, 1}, {1, 1, 0, 0}, {5, 1, 0, 3}};

template <class Body>
void on_every_split(Body&& body) {
  for (const auto& counts : splits) {
    CAPTURE(counts.size());
    fake::shared_state shared(counts.size());
    std::vector<fake::queue> queues(counts.size());
    fake::run_ranks(counts.size(), [&](int rank) {
      body(fake::group(shared, queues[static_cast<std::size_t>(rank)], rank), belay::shard_counts{counts});
    });
  }
}

double operand(int rank, std::size_t i) { return static_cast<double>(rank + 1) * 100 + static_cast<double>(i); }

double sum_of(int ranks, std::size_t i) {
  double total = 0;
  for (int r = 0; r < ranks; ++r) total += operand(r, i);
  return total;
}

}  // namespace

TEST_CASE("partial to replicate reduces, in place") {
  on_every_split([](const fake::group& group, belay::shard_counts counts) {
    std::vector<double> memory(counts.total());
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = operand(group.rank(), i);
    auto all = belay::redistribute<replicate>(tensor<partial<belay::sum>>{group, memory, counts});
    CHECK(all.local().data() == memory.data());
    for (std::size_t i = 0; i < memory.size(); ++i) CHECK(all.local()[i] == sum_of(group.size(), i));
  });
}

TEST_CASE("a placement of another axis than data moves along that axis's group, and back to the whole") {
  using belay::axis;
  on_every_split([](const fake::group& group, belay::shard_counts counts) {
    std::vector<double> memory(counts.total());
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = operand(group.rank(), i);
    tensor<partial<belay::sum, axis::expert>> sums{group, memory, counts};
    auto part = belay::redistribute<shard<0, axis::expert>>(std::move(sums));
    auto all = belay::redistribute<replicate>(std::move(part), std::span(memory));
    for (std::size_t i = 0; i < memory.size(); ++i) CHECK(all.local()[i] == sum_of(group.size(), i));
  });
}

TEST_CASE("partial to shard is the rank's slice of partial to replicate") {
  on_every_split([](const fake::group& group, belay::shard_counts counts) {
    std::vector<double> memory(counts.total());
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = operand(group.rank(), i);
    auto part = belay::redistribute<shard<0>>(tensor<partial<belay::sum>>{group, memory, counts});
    const belay::local_part own = part.own();
    CHECK(part.local().size() == own.count);
    for (std::size_t i = 0; i < own.count; ++i) CHECK(part.local()[i] == sum_of(group.size(), own.first + i));
  });
}

TEST_CASE("a maximum is reduced as a maximum") {
  on_every_split([](const fake::group& group, belay::shard_counts counts) {
    std::vector<double> memory(counts.total());
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = operand(group.rank(), i);
    auto all = belay::redistribute<replicate>(tensor<partial<belay::maximum>>{group, memory, counts});
    for (std::size_t i = 0; i < memory.size(); ++i) CHECK(all.local()[i] == operand(group.size() - 1, i));
  });
}

TEST_CASE("replicate to shard to replicate is the identity, in the same memory or another") {
  on_every_split([](const fake::group& group, belay::shard_counts counts) {
    std::vector<double> memory(counts.total());
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = operand(0, i);
    const std::vector<double> before = memory;
    std::vector<double> other(memory.size(), -1);
    auto part = belay::redistribute<shard<0>>(tensor<replicate>{group, memory, counts});
    CHECK(part.local().data() == memory.data() + part.own().first);
    auto all = belay::redistribute<replicate>(std::move(part), std::span(other));
    CHECK(other == before);
    auto again = belay::redistribute<shard<0>>(std::move(all));
    auto in_place = belay::redistribute<replicate>(std::move(again), std::span(other));
    CHECK(other == before);
    auto same = belay::redistribute<replicate>(std::move(in_place));
    CHECK(same.local().data() == other.data());
  });
}

TEST_CASE("storage of another size than the whole is refused") {
  fake::shared_state shared(1);
  fake::queue queue;
  const std::vector<std::size_t> counts{4};
  std::vector<double> memory(4);
  std::vector<double> small(3);
  tensor<shard<0>> part{fake::group(shared, queue, 0), memory, belay::shard_counts{counts}};
  CHECK_THROWS_AS(static_cast<void>(belay::redistribute<replicate>(std::move(part), std::span(small))),
                  belay::usage_error);
}
