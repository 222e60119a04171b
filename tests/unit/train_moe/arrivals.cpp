// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/arrivals.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "train_moe/options.hpp"

namespace {

using belay::span_kind;
using belay::traced_span;

traced_span called(const char* operation, std::uint64_t group, std::int64_t begin) {
  return {
      .name = operation, .begin = begin, .end = begin + 100'000'000, .group = group, .kind = span_kind::communication};
}
constexpr std::int64_t ms = 1'000'000;

}  // namespace

TEST_CASE("who comes last to the calls of a group is named, with what the others have waited") {
  constexpr std::size_t ranks = 3, calls = 8;
  constexpr std::uint64_t all_ranks = 77, first_two = 78;
  std::vector<double> all(ranks * calls * train_moe::arrivals::numbers);
  train_moe::arrivals found(ranks, calls, all);
  found.make_room();
  // Two barriers of all, of which rank 2 is last in one and rank 0 in the other; a sum of two ranks; and what is no
  // call of a group: a layer, a transfer of a pair, a barrier that rank 2 alone has come to, one that is not over.
  const traced_span layer{.name = "layer", .begin = 1, .end = 2};
  traced_span pair = called("exchange", all_ranks, 1), sent = pair, open = called("barrier", all_ranks, 900 * ms);
  sent.kind = span_kind::send;
  open.end = 0;
  const std::vector<traced_span> of[ranks] = {
      {layer, called("barrier", all_ranks, 10 * ms), called("all_reduce", first_two, 20 * ms),
       called("barrier", all_ranks, 50 * ms), open},
      {pair, sent, called("barrier", all_ranks, 12 * ms), called("all_reduce", first_two, 21 * ms),
       called("barrier", all_ranks, 45 * ms)},
      {called("barrier", all_ranks, 30 * ms), called("barrier", all_ranks, 40 * ms),
       called("barrier", all_ranks, 80 * ms)}};
  for (std::size_t rank = 0; rank < ranks; ++rank) found.note(of[rank], rank);
  for (int time = 0; time < 2; ++time) {  // the same again
    found.match();
    const auto waits = found.waits();
    REQUIRE(waits.size() == 2);
    CHECK(waits[0].operation == "barrier");
    CHECK(waits[0].calls == 2);
    CHECK(waits[0].last_rank == 2);  // 20 + 18 ms, and rank 0 let others wait for 5 + 10
    CHECK(waits[0].last_calls == 1);
    CHECK(waits[0].last_seconds == doctest::Approx(0.038));
    CHECK(waits[0].seconds[0] == doctest::Approx(0.020));
    CHECK(waits[0].seconds[1] == doctest::Approx(0.018 + 0.005));
    CHECK(waits[0].seconds[2] == doctest::Approx(0.010));
    CHECK(waits[1].operation == "all_reduce");
    CHECK(waits[1].last_rank == 1);
    CHECK(waits[1].seconds[0] == doctest::Approx(0.001));
    CHECK(waits[1].seconds[2] == 0);
  }
}

TEST_CASE("a model's operations a token are those of its products") {
  train_moe::options run;
  run.sequence = 32;
  run.model = {.vocab = 100,
               .hidden = 8,
               .expert_width = 16,
               .layers = 3,
               .heads = 2,
               .kv_heads = 1,
               .head_dim = 4,
               .experts = 6,
               .experts_per_token = 2};
  const double attention = 8 * 8 * 2 + 8 * 4 * 2, experts = 2 * 3 * 8 * 16, router = 8 * 6, head = 8 * 100;
  const double scores = 12 * 8 * 32;
  CHECK(train_moe::model_flops_per_token(run) == 3 * (6 * (attention + experts + router) + scores) + 6 * head);
  run.freeze = train_moe::freeze_kind::attention;
  CHECK(train_moe::model_flops_per_token(run) == 3 * (4 * attention + 6 * (experts + router) + scores) + 6 * head);
}
