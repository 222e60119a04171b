// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Likely mistakes of a first user of the buckets: each is reported with the parameter.
#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/replica_trainer.hpp"

using belay::zero_stage;
using doctest::Contains;

namespace {

using buckets_type = fake::buckets_of<float>;
using members = std::vector<belay::bucket_member<float>>;

constexpr bool local_checks = belay::checked(belay::check_level::local);

belay::parameter_spec spec(const char* name, std::size_t elements, std::size_t uses = 1) {
  return {.name = name, .shape = {elements}, .uses = uses};
}

// One rank's buckets of given parameters, bound and initialised.
struct made_buckets {
  made_buckets(members list, const fake::group& group, std::size_t micro_batches, zero_stage stage = zero_stage::none)
      : buckets(std::move(list), {{group, stage}}, 64, micro_batches),
        values(buckets.layout().elements()),
        gradients(buckets.layout().gradient_elements()) {
    buckets.bind(values, gradients);
    for (std::size_t p = 0; p < buckets.parameters(); ++p) buckets.parameter(p).initialise(3);
  }
  buckets_type buckets;
  std::vector<float> values;
  std::vector<float> gradients;
};

}  // namespace

TEST_CASE("a parameter listed twice, or two of one name, is refused with the name and both positions") {
  fake::shared_state shared(1);
  fake::queue queue;
  const fake::group group(shared, queue, 0);
  belay::parameter<float> wte{spec("wte", 64)};
  belay::parameter<float> norm{spec("norm", 8)};
  belay::parameter<float> head{spec("wte", 64)};
  const auto make = [&](const members& list) { buckets_type{list, {{group}}, 1024, 1}; };
  const belay::replica_group_shape alone;
  CHECK_NOTHROW(make({{wte, 0}, {norm, 0}}));
  CHECK_THROWS_WITH_AS(make({{wte, 0}, {norm, 0}, {wte, 0}}),
                       Contains("parameter wte is listed twice, as numbers 0 and 2"), belay::usage_error);
  CHECK_THROWS_WITH_AS(make({{norm, 0}, {wte, 0}, {head, 0}}),
                       Contains("two parameters are called wte, numbers 1 and 2"), belay::usage_error);
  const members twice{{wte, 0}, {wte, 0}};
  CHECK_THROWS_AS(static_cast<void>(belay::layout_of<float>(twice, std::span(&alone, 1), 1024)), belay::usage_error);
  CHECK_THROWS_WITH_AS((belay::parameter<float>{spec("idle", 4, 0)}), Contains("parameter idle has 0 uses"),
                       belay::usage_error);
}

TEST_CASE("a tied parameter's bucket goes at the last contribution of its last use") {
  for (std::size_t micro_batches : {1u, 3u}) {
    fake::shared_state shared(2);
    std::vector<fake::queue> queues(2);
    fake::run_ranks(2, [&](int rank) {
      fake::queue& queue = queues[static_cast<std::size_t>(rank)];
      belay::parameter<float> wte{spec("wte", 32, 2)};
      belay::parameter<float> inner{spec("inner", 16)};
      made_buckets made({{wte, 0}, {inner, 0}}, {shared, queue, rank}, micro_batches);
      made.buckets.begin(micro_batches);
      for (std::size_t m = 0; m < micro_batches; ++m) {
        made.buckets.contributed(0, 1, m);  // the head
        made.buckets.contributed(1, 1, m);
        CHECK(queue.log.size() == (m + 1 == micro_batches ? 1 : 0));  // inner alone
        CHECK_FALSE(made.buckets.complete());
        made.buckets.contributed(0, 1, m);  // the embedding
      }
      CHECK(queue.log == std::vector<std::string>{"all_reduce 16", "all_reduce 32"});
      CHECK(made.buckets.complete());
      CHECK_NOTHROW(static_cast<void>(made.buckets.finish(belay::target_tokens{1})));
    });
  }
}

TEST_CASE("a tied parameter's missing and superfluous contributions are named") {
  fake::shared_state shared(1);
  fake::queue queue;
  belay::parameter<float> wte{spec("wte", 32, 2)};
  made_buckets made({{wte, 0}}, {shared, queue, 0}, 2);
  auto& buckets = made.buckets;
  buckets.begin(2);
  buckets.contributed(0, 1, 0);
  buckets.contributed(0, 1, 1);
  buckets.contributed(0, 1, 1);
  CHECK_THROWS_WITH_AS(static_cast<void>(buckets.finish(belay::target_tokens{1})),
                       Contains("parameter wte misses micro-batch 0 (1 of 2 uses)"), belay::usage_error);
  const auto again = [&] { buckets.contributed(0, 1, 1); };
  if (local_checks)
    CHECK_THROWS_WITH_AS(again(), Contains("micro-batch 1 contributed to parameter wte more often than its 2 uses"),
                         belay::usage_error);
  else
    again();
  buckets.contributed(0, 1, 0);
  CHECK_THROWS_WITH_AS(static_cast<void>(buckets.finish(belay::target_tokens{1})),
                       Contains("more often than its 2 uses"), belay::usage_error);
  buckets.abandon();
  buckets.begin(0);
  CHECK_NOTHROW(static_cast<void>(buckets.finish(belay::target_tokens{1})));
}

TEST_CASE("contributions beyond the list are refused, however many") {
  fake::shared_state shared(1);
  fake::queue queue;
  belay::parameter<float> one{spec("one", 4)};
  for (const auto& [first, count] :
       {std::pair<std::size_t, std::size_t>{0, 2}, {1, 1}, {0, ~std::size_t{0}}, {1, ~std::size_t{0}}}) {
    made_buckets made({{one, 0}}, {shared, queue, 0}, 1);
    made.buckets.begin(1);
    const auto beyond = [&, from = first, many = count] { made.buckets.contributed(from, many, 0); };
    if (local_checks)
      CHECK_THROWS_WITH_AS(beyond(), Contains("parameter number 1 of 1"), belay::usage_error);
    else
      beyond();
    CHECK_FALSE(made.buckets.complete());
  }
  belay::parameter<float> many{spec("many", 4, std::size_t{1} << 40U)};
  CHECK_THROWS_WITH_AS(
      (buckets_type{members{{many, 0}}, {{fake::group(shared, queue, 0)}}, 64, std::size_t{1} << 40U}),
      Contains("more than any memory holds"), belay::usage_error);
}

TEST_CASE("buckets without memory do not begin") {
  fake::shared_state shared(1);
  fake::queue queue;
  belay::parameter<float> one{spec("one", 4)};
  buckets_type buckets{members{{one, 0}}, {{fake::group(shared, queue, 0)}}, 64, 1};
  CHECK_THROWS_WITH_AS(buckets.begin(1), Contains("call bind"), belay::usage_error);
}

TEST_CASE("checked builds reduce beside the gradients: the layout counts it where there is something to reduce") {
  const std::vector<belay::bucket_entry> entries{{40, 0}, {3, 1}, {17, 0}};
  for (zero_stage stage : {zero_stage::none, zero_stage::optimizer_state})
    for (std::size_t first : {1u, 3u})
      for (std::size_t second : {1u, 2u}) {
        const std::vector<belay::replica_group_shape> replica_groups{{first, stage}, {second, stage}};
        const belay::bucket_layout layout(entries, replica_groups, sizeof(float), 100);
        std::size_t beside = 0;
        for (const auto& b : layout.buckets()) {
          const bool reduced = local_checks && replica_groups[b.replica_group].ranks > 1;
          CHECK(b.reduced_at == (reduced ? layout.elements() + beside : b.first));
          if (reduced) beside += b.count;
        }
        CHECK(layout.gradient_elements() == layout.elements() + beside);
      }
}

TEST_CASE("a backward that adds to a gradient after its last contribution is named, on one rank and on several") {
  for (std::size_t ranks : {1u, 3u})
    for (zero_stage stage : {zero_stage::none, zero_stage::optimizer_state}) {
      fake::shared_state shared(ranks);
      std::vector<fake::queue> queues(ranks);
      fake::run_ranks(ranks, [&](int rank) {
        fake::rank_state<float> state({shared, queues[static_cast<std::size_t>(rank)], rank}, stage, 16384);
        auto& buckets = *state.buckets;
        for (std::size_t late : {0u, 3u, 5u}) {
          buckets.begin(2);
          state.backward(0, 1);
          state.backward(1, 0);
          for (float* element = state.parameters[late].gradient(); element != nullptr; element = nullptr)
            *element = -*element;
          const auto finish = [&] { static_cast<void>(buckets.finish(belay::target_tokens{1})); };
          if (!local_checks) {
            finish();
            continue;
          }
          const std::string name = "the gradient of parameter p" + std::to_string(late) + " changed after";
          CHECK_THROWS_WITH_AS(finish(), Contains(name.c_str()), belay::usage_error);
          buckets.begin(2);
          state.backward(0, 0);
          state.backward(1, 1);
          state.parameters[late].gradient()[0] += 1;
          CHECK_THROWS_WITH_AS(finish(), Contains("(micro-batch 1 at "), belay::usage_error);
          buckets.begin(0);
          state.parameters[late].gradient()[0] += 1;
          CHECK_THROWS_WITH_AS(finish(), Contains("(a step of no micro-batches at "), belay::usage_error);
        }
        buckets.begin(1);  // what was refused leaves no trace
        state.backward(0, 0);
        CHECK_NOTHROW(static_cast<void>(buckets.finish(belay::target_tokens{1})));
      });
    }
}

TEST_CASE("a tied parameter that is said to be used once is found by the backward of its other layer") {
  if (!local_checks) return;
  fake::shared_state shared(1);
  fake::queue queue;
  belay::parameter<float> wte{spec("wte", 32)};
  made_buckets made({{wte, 0}}, {shared, queue, 0}, 1);
  made.buckets.begin(1);
  wte.gradient()[0] += 1;
  made.buckets.contributed(0, 1, 0);  // the head
  wte.gradient()[0] += 1;             // the embedding's backward
  CHECK_THROWS_WITH_AS(static_cast<void>(made.buckets.finish(belay::target_tokens{1})),
                       Contains("a parameter that several layers share is made with as many uses"), belay::usage_error);
}

TEST_CASE("the target tokens of all ranks are summed once by finish, and 0 of all is refused by all") {
  for (std::size_t ranks : {1u, 2u, 3u}) {
    fake::shared_state shared(ranks);
    std::vector<fake::queue> queues(ranks);
    fake::run_ranks(ranks, [&](int rank) {
      const fake::group group(shared, queues[static_cast<std::size_t>(rank)], rank);
      const auto own = static_cast<std::size_t>(rank);
      belay::parameter<float> one{spec("one", 4)};
      made_buckets made({{one, 0}}, group, 1, zero_stage::optimizer_state);
      made.buckets.begin(1);
      one.gradient()[1] = 12;
      made.buckets.contributed(0, 1, 0);
      const auto gradients = made.buckets.finish(belay::local_targets{own == 0 ? 2 : own}, group);
      std::size_t all = 2;
      for (std::size_t r = 1; r < ranks; ++r) all += r;
      CHECK(gradients.targets() == all);
      for (const auto& range : gradients.owned())
        CHECK(range.gradient[1] == doctest::Approx(12.0 * static_cast<double>(ranks) / static_cast<double>(all)));
      made.buckets.begin(0);
      CHECK_THROWS_WITH_AS(static_cast<void>(made.buckets.finish(belay::local_targets{0}, group)),
                           Contains("without target tokens"), belay::usage_error);
      if (ranks < 2) return;
      made.buckets.begin(0);
      const belay::local_targets half{std::numeric_limits<std::size_t>::max() / 2 + 2};
      CHECK_THROWS_WITH_AS(static_cast<void>(made.buckets.finish(half, group)), Contains("more than any memory holds"),
                           belay::size_error);
    });
  }
}

TEST_CASE("ranks that compare nothing, or abstain, differ in nothing; others in the first word that is not equal") {
  fake::shared_state alone(1);
  fake::queue queue;
  belay::rank_comparison single;
  CHECK_FALSE(single.differ(fake::group(alone, queue, 0), std::vector<std::uint64_t>{1, 2}, {}));
  fake::shared_state shared(3);
  std::vector<fake::queue> queues(3);
  fake::run_ranks(3, [&](int rank) {
    const fake::group group(shared, queues[static_cast<std::size_t>(rank)], rank);
    const auto own = static_cast<std::uint64_t>(rank);
    const auto none = belay::rank_comparison::abstains;
    belay::rank_comparison compared;
    const auto differ = [&](const std::vector<std::uint64_t>& words) { return compared.differ(group, words, {}); };
    CHECK_FALSE(differ({}));
    CHECK_FALSE(differ({4, 5}));
    CHECK_FALSE(differ({4, rank == 1 ? 5 : none}));
    CHECK_FALSE(differ({rank == 2 ? 5 : none, none}));
    CHECK(differ({4, own == 1 ? 7U : 6U, own}));
    CHECK(compared.first() == 1);
    CHECK(compared.text(group) == "ranks 0, 2: 6; rank 1: 7");
    CHECK(compared.ranks(group) == "ranks 0, 2 and rank 1");
    CHECK(differ({rank == 0 ? none : own}));
    CHECK(compared.text(group) == "rank 1: 1; rank 2: 2");
  });
}
