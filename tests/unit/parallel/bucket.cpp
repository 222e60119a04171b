// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/bucket.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "belay/comm/rehearsal.hpp"
#include "belay/device/memory.hpp"
#include "support/replica_trainer.hpp"

namespace {

using belay::zero_stage;
using fake::awkward_sizes;

std::vector<belay::bucket_entry> entries_of(const std::vector<std::size_t>& sizes) {
  std::vector<belay::bucket_entry> entries;
  for (std::size_t size : sizes) entries.push_back({size, 0});
  return entries;
}

std::string message_of(auto&& body) {
  try {
    body();
  } catch (const belay::usage_error& e) {
    return e.what();
  }
  return "nothing was thrown";
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("every element of every parameter is owned exactly once, cut between units only") {
  for (std::size_t ranks : {1u, 2u, 3u, 4u, 7u})
    for (std::size_t bytes : {1u, 4096u, 100000u, 1u << 30}) {
      CAPTURE(ranks);
      CAPTURE(bytes);
      const belay::ownership_unit unit(bytes == 100000u ? 1 : 0);
      const belay::replica_group_shape replica_group{ranks, zero_stage::optimizer_state};
      const belay::bucket_layout layout(entries_of(awkward_sizes), std::span(&replica_group, 1), sizeof(float), bytes,
                                        unit);
      std::vector<std::vector<int>> owners;
      for (std::size_t size : awkward_sizes) owners.emplace_back(size);
      std::size_t total = 0;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        total += layout.owned_elements(std::span(&rank, 1));
        for (const auto& bucket : layout.buckets())
          layout.each_owned(bucket, rank, [&](const belay::parameter_range& range) {
            CHECK(range.offset % unit.elements() == 0);
            const std::size_t end = range.offset + range.count;
            CHECK((end % unit.elements() == 0 || end == awkward_sizes[range.parameter]));
            for (std::size_t i = range.offset; i < end; ++i) ++owners[range.parameter][i];
          });
      }
      std::size_t elements = 0;
      for (const auto& parameter : owners) {
        elements += parameter.size();
        CHECK(std::all_of(parameter.begin(), parameter.end(), [](int n) { return n == 1; }));
      }
      CHECK(total == elements);
    }
}

TEST_CASE("counts of a bucket add up to the bucket, and large buckets are shared evenly") {
  const belay::replica_group_shape replica_group{4, zero_stage::optimizer_state};
  const belay::bucket_layout layout(entries_of({1u << 20, 77, 1u << 18}), std::span(&replica_group, 1), sizeof(float),
                                    1u << 30);
  REQUIRE(layout.buckets().size() == 1);
  const auto& bucket = layout.buckets()[0];
  std::size_t total = 0;
  for (std::size_t count : bucket.counts) {
    total += count;
    CHECK(count <= bucket.count / 4 + belay::parameter_chunk);
  }
  CHECK(total == bucket.count);
}

TEST_CASE("parameters are aligned to 64 bytes and buckets follow the backward") {
  const belay::replica_group_shape replica_group{2, zero_stage::none};
  const belay::bucket_layout layout(entries_of({3, 17, 1, 40}), std::span(&replica_group, 1), sizeof(double), 100);
  for (std::size_t p = 0; p < 4; ++p) CHECK(layout.offset(p) * sizeof(double) % 64 == 0);
  CHECK(layout.offset(3) == 0);
  CHECK(layout.offset(0) > layout.offset(1));
  CHECK(layout.elements() == 40 + 8 + 24 + 8);
  CHECK(layout.buckets().size() == 4);
}

TEST_CASE("entries that follow each other are one range in their own order and one bucket") {
  const std::vector<belay::replica_group_shape> replica_groups{{2, zero_stage::none}, {1, zero_stage::none}};
  const auto of = [&](std::vector<belay::bucket_entry> entries) {
    return belay::bucket_layout(entries, replica_groups, sizeof(float), 256);
  };
  const std::size_t free = belay::placed_by_layout;
  const auto together = of({{64, 0, 1}, {48, 0, 2}, {16, 0, 3, free, 0, 2}, {32, 0, 4, free, 0, 3}, {16, 0, 5}});
  CHECK(together.offset(4) == 0);
  CHECK(together.offset(1) == 16);
  CHECK(together.offset(2) == together.offset(1) + 48);
  CHECK(together.offset(3) == together.offset(2) + 16);
  CHECK(together.offset(0) == together.offset(3) + 32);
  REQUIRE(together.buckets().size() == 3);
  CHECK(together.buckets()[1].members == std::vector<std::size_t>{1, 2, 3});
  // Not behind another layer's, another replica group's, or one that is not before it.
  for (const belay::bucket_entry& other : {belay::bucket_entry{16, 0, 3, free, 1, 2},
                                           {16, 1, 3, free, 0, 2},
                                           {16, 0, 3, free, 0, 9},
                                           {16, 0, 3, free, 0, 0}}) {
    const auto apart = of({{16, 0, 1}, {16, 0, 2}, other});
    CHECK(apart.offset(2) != apart.offset(1) + 16);
  }
  // A parameter that does not end at a multiple of 64 bytes has a gap behind it, as everywhere.
  const auto padded = of({{17, 0, 1}, {16, 0, 2, free, 0, 1}});
  CHECK(padded.offset(0) == 0);
  CHECK(padded.offset(1) == 32);
}

TEST_CASE(
    "a layout's fingerprint tells names, sizes, order, buckets and division of one replica group, and no other's") {
  const auto of = [](const std::vector<belay::bucket_entry>& entries, std::size_t bytes = 1024,
                     belay::replica_group_shape replica_group = {3, zero_stage::none}) {
    const std::vector<belay::replica_group_shape> replica_groups{replica_group, {1, zero_stage::none}};
    return belay::bucket_layout(entries, replica_groups, sizeof(float), bytes).fingerprint(0);
  };
  const std::uint64_t one = of({{40, 0}, {33, 0}, {7, 1}});
  CHECK(of({{40, 0}, {33, 0}, {7, 1}}) == one);
  CHECK(of({{40, 0}, {9999, 1}, {33, 0}}) == one);  // the other replica group is the other replica group's
  CHECK(of({{33, 0}, {40, 0}, {7, 1}}) != one);     // equal when padded
  CHECK(of({{41, 0}, {33, 0}, {7, 1}}) != one);
  CHECK(of({{40, 0}, {33, 0}, {7, 0}}) != one);
  CHECK(of({{40, 0}, {33, 0}, {7, 1}}, 1) != one);
  CHECK(of({{40, 0}, {33, 0}, {7, 1}}, 1024, {4, zero_stage::none}) != one);
  CHECK(of({{40, 0}, {33, 0}, {7, 1}}, 1024, {3, zero_stage::optimizer_state}) != one);
  CHECK(of({}) != one);
  const std::uint64_t named = of({{40, 0, 1}, {40, 0, 2}, {7, 1, 3}});
  CHECK(of({{40, 0, 1}, {40, 0, 4}, {7, 1, 3}}) != named);
  CHECK(of({{40, 0, 2}, {40, 0, 1}, {7, 1, 3}}) != named);  // equal but for the names
  CHECK(of({{40, 0, 1}, {40, 0, 2}, {7, 1, 4}}) == named);
}

TEST_CASE(
    "buckets of several replica groups are launched in one order, as the backward reaches their earliest parameter") {
  const std::vector<belay::replica_group_shape> replica_groups{{4, zero_stage::none}, {2, zero_stage::none}};
  std::vector<belay::bucket_entry> entries;
  for (std::size_t layer = 0; layer < 4; ++layer) {
    entries.push_back({100, 0});
    entries.push_back({500, 1});
  }
  const belay::bucket_layout layout(entries, replica_groups, sizeof(float), 900);
  std::size_t last = entries.size();
  for (const auto& bucket : layout.buckets()) {
    CHECK(bucket.members.back() < last);
    last = bucket.members.back();
    for (std::size_t member : bucket.members) CHECK(entries[member].replica_group == bucket.replica_group);
  }
}

TEST_CASE(
    "a bucket is launched when its last contribution arrives, in the planned order even if later ones are ready") {
  fake::shared_state shared(2);
  std::vector<fake::queue> queues(2);
  fake::run_ranks(2, [&](int rank) {
    fake::queue& queue = queues[static_cast<std::size_t>(rank)];
    fake::rank_state<float> state(fake::group(shared, queue, rank), zero_stage::none, 1, {64, 32, 16});
    auto& buckets = *state.buckets;
    buckets.begin(2);
    buckets.contributed(2, 1, 0);
    CHECK(queue.log.empty());
    buckets.contributed(2, 1, 1);
    CHECK(queue.log == std::vector<std::string>{"all_reduce 16"});
    buckets.contributed(0, 1, 0);
    buckets.contributed(0, 1, 1);  // ready before parameter 1, which comes first in the plan
    CHECK(queue.log.size() == 1);
    buckets.contributed(1, 1, 1);
    buckets.contributed(1, 1, 0);
    CHECK(queue.log == std::vector<std::string>{"all_reduce 16", "all_reduce 32", "all_reduce 64"});
    CHECK(buckets.complete());
  });
}

TEST_CASE(
    "a contribution made twice is an error that names parameter and micro-batch, and the step cannot be finished") {
  fake::shared_state shared(1);
  fake::queue queue;
  fake::rank_state<float> state(fake::group(shared, queue, 0), zero_stage::none, 1024);
  state.buckets->begin(2);
  state.buckets->contributed(0, 3, 1);
  const auto again = [&] { state.buckets->contributed(1, 1, 1); };
  if (belay::checked(belay::check_level::local)) {
    const std::string text = message_of(again);
    CHECK(contains(text, "micro-batch 1 contributed to parameter p1 twice"));
    CHECK(contains(text, "bucket.cpp:"));
  } else {
    again();
  }
  for (std::size_t p = 0; p < awkward_sizes.size(); ++p)
    for (std::size_t m = 0; m < 2; ++m)
      if (!(p < 3 && m == 1)) state.buckets->contributed(p, 1, m);
  CHECK_FALSE(state.buckets->complete());
  CHECK(contains(message_of([&] { static_cast<void>(state.buckets->finish(belay::target_tokens{1})); }),
                 "micro-batch 1 contributed to parameter p1 twice"));
}

TEST_CASE("finish refuses a step with a missing contribution and names it") {
  fake::shared_state shared(1);
  fake::queue queue;
  fake::rank_state<float> state(fake::group(shared, queue, 0), zero_stage::none, 1024);
  state.buckets->begin(3);
  for (std::size_t m = 0; m < 3; ++m)
    for (std::size_t p = 0; p < awkward_sizes.size(); ++p)
      if (p != 3 || m == 1) state.buckets->contributed(p, 1, m);
  const std::string text = message_of([&] { static_cast<void>(state.buckets->finish(belay::target_tokens{1})); });
  CHECK(contains(text, "parameter p3 misses micro-batch 0 2"));
  CHECK_FALSE(contains(text, "p2"));
}

TEST_CASE("an abandoned step leaves nothing in flight, although peers were complete, and the next one is whole") {
  for (zero_stage stage : {zero_stage::none, zero_stage::optimizer_state}) {
    fake::shared_state shared(3);
    std::vector<fake::queue> queues(3);
    fake::run_ranks(3, [&](int rank) {
      fake::rank_state<double> state(fake::group(shared, queues[static_cast<std::size_t>(rank)], rank), stage,
                                        1024);
      state.buckets->begin(1);
      if (rank != 1)
        state.backward(0, 0);
      else
        state.buckets->contributed(7, 1, 0);
      if (state.buckets->complete())
        static_cast<void>(state.buckets->finish(belay::target_tokens{1}));
      else
        state.buckets->abandon();
      state.buckets->begin(1);
      state.backward(5, 0);
      const double one = state.parameters[3].gradient()[4096];
      const auto gradients = state.buckets->finish(belay::target_tokens{4});
      for (const auto& range : gradients.owned())
        if (range.parameter == 3 && range.offset == 4096) CHECK(range.gradient[0] == doctest::Approx(3 * one / 4));
    });
  }
}

TEST_CASE("a step in the wrong order is refused") {
  fake::shared_state shared(1);
  fake::queue queue;
  fake::rank_state<float> state(fake::group(shared, queue, 0), zero_stage::none, 1024);
  auto& buckets = *state.buckets;
  CHECK_THROWS_AS(buckets.contributed(0, 1, 0), belay::usage_error);
  CHECK_THROWS_AS(static_cast<void>(buckets.finish(belay::target_tokens{1})), belay::usage_error);
  buckets.begin(0);
  CHECK_THROWS_AS(buckets.begin(0), belay::usage_error);
  static_cast<void>(buckets.finish(belay::target_tokens{1}));
  CHECK_THROWS_AS(static_cast<void>(buckets.finish(belay::target_tokens{1})), belay::usage_error);
  CHECK_THROWS_AS(buckets.begin(fake::micro_batches + 1), belay::usage_error);
  CHECK_THROWS_AS(belay::target_tokens{0}, belay::usage_error);
}

TEST_CASE("ranks with no micro-batch take part with zeros") {
  fake::shared_state shared(3);
  std::vector<fake::queue> queues(3);
  fake::run_ranks(3, [&](int rank) {
    fake::rank_state<double> state(fake::group(shared, queues[static_cast<std::size_t>(rank)], rank),
                                      zero_stage::none, 1024);
    state.buckets->begin(rank == 1 ? 1 : 0);
    if (rank == 1) state.backward(0, 0);
    static_cast<void>(state.buckets->finish(belay::target_tokens{2}));
    const double expected = std::sin(static_cast<double>(3 * 7919 + 5 * 31) + state.parameters[3].value()[5]) / 2;
    CHECK(state.parameters[3].gradient()[5] == doctest::Approx(expected));
  });
}

TEST_CASE("gradients are reduced and divided exactly once: N ranks equal one rank") {
  const auto one = fake::train<double>(1, zero_stage::none);
  for (zero_stage stage : {zero_stage::none, zero_stage::optimizer_state})
    for (std::size_t ranks : {2u, 3u, 4u}) {
      const auto many = fake::train<double>(ranks, stage);
      for (std::size_t p = 0; p < awkward_sizes.size(); ++p) {
        double difference = 0;
        double size = 0;
        for (std::size_t i = 0; i < awkward_sizes[p]; ++i) {
          difference += std::pow(many.gradients[p][i] - one.gradients[p][i], 2);
          size += std::pow(one.gradients[p][i], 2);
        }
        CHECK(std::sqrt(difference) <= 1e-12 * std::sqrt(size));
      }
    }
}

TEST_CASE("buckets are rehearsed over addresses without memory: bind, a whole step and a gather touch none of it") {
  const belay::rehearsal::rank rank{1, 3};
  using group = belay::rehearsal::group;
  for (const zero_stage stage : {zero_stage::none, zero_stage::optimizer_state}) {
    belay::parameter<float> big{{.name = "big", .shape = {1U << 16, 1U << 16}}};  // 16 GiB, as are its gradients
    belay::parameter<float> small{{.name = "small", .shape = {7}}};
    belay::gradient_buckets<float, group> buckets{{{big, 0}, {small, 0}}, {{rank.world(), stage}}, 1U << 20, 2};
    const std::size_t elements = buckets.layout().elements();
    const std::size_t gradient_elements = buckets.layout().gradient_elements();
    const belay::reserved_addresses nowhere{(elements + gradient_elements) * sizeof(float)};
    auto* const first = reinterpret_cast<float*>(nowhere.data());
    buckets.bind({first, elements}, {first + elements, gradient_elements});
    CHECK(small.value() != nullptr);
    buckets.begin(2);
    for (std::size_t m = 0; m < 2; ++m) buckets.contributed(0, 2, m);
    const auto gradients = buckets.finish(belay::target_tokens{5});
    CHECK(gradients.number() == 1);
    CHECK(gradients.owned().empty() == false);
    for (std::size_t b = 0; b < buckets.layout().buckets().size(); ++b) buckets.start_gather(b);
    buckets.finish_gathers();
    buckets.begin(1);
    buckets.abandon();
  }
}

TEST_CASE(
    "bind touches no memory, begin zeroes every gradient, padding too, and values are their parameters' to write") {
  fake::shared_state shared(1);
  fake::queue queue;
  const std::vector<std::size_t> sizes{3, 17, 0, 40};
  fake::rank_state<float> state(fake::group(shared, queue, 0), zero_stage::none, 1024, sizes);
  std::fill(state.values.begin(), state.values.end(), 5.0F);
  std::fill(state.gradients.begin(), state.gradients.end(), 6.0F);
  state.buckets->bind(state.values, state.gradients);
  CHECK(std::count(state.values.begin(), state.values.end(), 5.0F) == static_cast<std::ptrdiff_t>(state.values.size()));
  CHECK(std::count(state.gradients.begin(), state.gradients.end(), 6.0F) ==
        static_cast<std::ptrdiff_t>(state.gradients.size()));
  state.buckets->begin(1);
  CHECK(std::count(state.gradients.begin(), state.gradients.end(), 0.0F) ==
        static_cast<std::ptrdiff_t>(state.gradients.size()));
  CHECK(std::count(state.values.begin(), state.values.end(), 5.0F) == static_cast<std::ptrdiff_t>(state.values.size()));
}

TEST_CASE("a layout whose elements wrap round is refused and names the parameter") {
  const auto refused = [&](const std::vector<std::size_t>& sizes) {
    const belay::replica_group_shape shape{2, zero_stage::optimizer_state};
    return message_of([&] { belay::bucket_layout(entries_of(sizes), std::span(&shape, 1), sizeof(float), 1U << 20); });
  };
  constexpr std::size_t quarter = std::size_t{1} << 60;  // two such are more than any memory
  CHECK(contains(refused({3, SIZE_MAX}), "parameter number 1 (18446744073709551615 elements of 4 bytes)"));
  CHECK(contains(refused({3, std::size_t{1} << 62}), "more than any memory holds"));  // whose bytes are 0 in 64 bits
  CHECK(contains(refused({quarter, 5, quarter}),
                 "parameter number 0 (1152921504606846976 elements of 4 bytes) and those after"));
  CHECK(belay::chunks_of(SIZE_MAX) == SIZE_MAX / belay::parameter_chunk + 1);
  CHECK(contains(message_of([] {
                   belay::contribution_map(std::vector<std::size_t>{1, 2}, SIZE_MAX);
                 }),
                 "micro-batches of 3 uses"));
  CHECK(contains(message_of([] {
                   belay::contribution_map(std::vector<std::size_t>{SIZE_MAX, 2}, 1);
                 }),
                 "more than any memory"));
}
