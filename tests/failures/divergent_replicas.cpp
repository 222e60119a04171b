// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks that should replicate each other and do not: another list, another seed, the local count of target tokens.
// Every rank is told the same difference and nobody hangs. Lists and first values are compared in all builds, divisors
// with checks across ranks: a release would train on and be merely worse.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/parallel/bucket.hpp"
#include "belay/train/clip.hpp"

namespace {

using belay::group;
using doctest::Contains;

constexpr bool compared = belay::checked(belay::check_level::across_ranks);

bool holds(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

enum class slip { none, seed, one_value, name, order, size, count, decay, bucket_bytes, targets, local_targets };

struct rank_buckets {
  rank_buckets(const belay::mesh& mesh, belay::zero_stage stage, slip wrong) {
    const auto is = [&](slip which) { return wrong == which; };
    std::vector<belay::parameter_spec> specs{
        {.name = "wte", .shape = {is(slip::size) ? 39U : 40U}, .first_values = belay::initial::normal(1)},
        {.name = is(slip::name) ? "norm_" : "norm", .shape = {40}, .first_values = belay::initial::normal(1)},
        {.name = "head",
         .shape = {40},
         .first_values = belay::initial::normal(1),
         .decay = is(slip::decay) ? belay::weight_decay::no : belay::weight_decay::yes}};
    if (is(slip::order)) std::swap(specs[1], specs[2]);
    if (is(slip::count)) specs.pop_back();
    parameters.reserve(specs.size() + 1);
    std::vector<belay::bucket_member<float>> members;
    for (const auto& spec : specs) members.emplace_back(parameters.emplace_back(spec), 0);
    // Another replica group, whose groups hold parameters of their own.
    expert.emplace_back(
        belay::parameter_spec{.name = "expert" + std::to_string(mesh.coordinate().expert), .shape = {30}});
    members.emplace_back(expert.back(), 1);
    buckets = std::make_unique<belay::gradient_buckets<float, group>>(
        std::move(members),
        std::vector<belay::bucket_replica_group<group>>{{mesh.replicas(), stage}, {mesh.data(), stage}},
        is(slip::bucket_bytes) ? 1 : 1024, 1);
    values.resize(buckets->layout().elements());
    gradients.resize(buckets->layout().gradient_elements());
    buckets->bind(values, gradients);
    for (auto& p : parameters) p.initialise(is(slip::seed) ? 2 : 1);
    expert.back().initialise(1);
    if (is(slip::one_value)) parameters.back().value()[39] = -parameters.back().value()[39];
  }
  std::vector<belay::parameter<float>> parameters;
  std::vector<belay::parameter<float>> expert;
  std::unique_ptr<belay::gradient_buckets<float, group>> buckets;
  std::vector<float> values;
  std::vector<float> gradients;
};

// What every rank was told when rank `odd` of `shape` made the slip; the second step is the first that goes well.
std::vector<std::string> errors(const belay::axes& shape, int odd, slip wrong, belay::zero_stage stage) {
  std::vector<std::string> said(static_cast<std::size_t>(shape.ranks()));
  belay::host::world{static_cast<int>(shape.ranks())}.run([&](belay::host::rank& rank) {
    const belay::mesh mesh{rank, shape};
    const slip mine = rank.number() == odd ? wrong : slip::none;
    rank_buckets made(mesh, stage, mine);
    belay::norm_table table;
    std::vector<belay::norm_place> places;
    for (std::size_t p = 0; p < made.buckets->parameters(); ++p)
      places.push_back({table.add(made.buckets->parameter(p).local_size()), 0});
    std::vector<double> squares(table.entries());
    belay::gradient_norm<float> norm{table, places, squares};
    try {
      made.buckets->begin(1);
      made.buckets->contributed(0, made.buckets->parameters(), 0);
      if (wrong == slip::local_targets) {
        static_cast<void>(made.buckets->finish(belay::local_targets{mine == wrong ? 3U : 10U}, mesh.replicas()));
      } else {
        static_cast<void>(made.buckets->finish(belay::target_tokens{mine == slip::targets ? 10U : 30U}));
      }
    } catch (const belay::usage_error& e) {
      said[static_cast<std::size_t>(rank.number())] = e.what();
      if (wrong != slip::targets) return;
    }
    made.buckets->begin(1);
    made.buckets->contributed(0, made.buckets->parameters(), 0);
    static_cast<void>(made.buckets->finish(belay::target_tokens{30}));
  });
  return said;
}

struct expectation {
  slip wrong;
  const char* what;    // all ranks read
  const char* odd;     // rank 1 also
  const char* others;  // and the others
};

// In all builds.
const std::vector<expectation> other_replicas{
    {slip::name, "list different parameters in replica group 0: ", "its number 1 is norm_ of 40",
     "its number 1 is norm of 40"},
    {slip::order, "list different parameters in replica group 0: ", "its number 1 is head of 40",
     "its number 1 is norm of 40"},
    {slip::size, "list different parameters in replica group 0: ", "its number 0 is wte of 39",
     "its number 0 is wte of 40"},
    {slip::decay, "list different parameters in replica group 0: ", "its number 2 is head", "its number 2 is head"},
    {slip::count, "replica group 0 list different numbers of parameters (", "its number 2 is not listed here",
     "its number 2 is head of 40"},
    {slip::bucket_bytes, "cut the parameters of replica group 0 into different buckets", "", ""},
    {slip::seed, "begin with different values of parameter wte in replica group 0", "", ""},
    {slip::one_value, "begin with different values of parameter head in replica group 0", "", ""},
};
// With checks across ranks.
const expectation other_divisors{slip::targets, "target_tokens differ between ranks (", "rank 1: 10", "rank 1: 10"};

}  // namespace

TEST_CASE("replicas that differ are named on all of them, with what differs") {
  std::vector<expectation> expectations = other_replicas;
  if (compared) expectations.push_back(other_divisors);
  for (const belay::axes& shape :
       {belay::axes{.data = 3}, belay::axes{.data = 2, .expert = 2}, belay::axes{.expert = 3}})
    for (belay::zero_stage stage : {belay::zero_stage::none, belay::zero_stage::optimizer_state})
      for (const expectation& expected : expectations) {
        CAPTURE(shape.text());
        const std::vector<std::string> said = errors(shape, 1, expected.wrong, stage);
        for (std::size_t rank = 0; rank < said.size(); ++rank) {
          for (const char* part : {expected.what, rank == 1 ? expected.odd : expected.others, "rank 1", "ranks 0, 2"})
            CHECK_MESSAGE(holds(said[rank], part), said[rank]);
        }
      }
}

TEST_CASE("replicas that agree, a single rank, and counts that finish sums, are not complained of") {
  for (const belay::axes& shape : {belay::axes{}, belay::axes{.data = 3}, belay::axes{.data = 2, .expert = 2}})
    for (slip wrong : {slip::none, slip::local_targets})
      for (const std::string& text : errors(shape, 0, wrong, belay::zero_stage::optimizer_state)) CHECK(text == "");
}

TEST_CASE("stages of a pipeline share no bucket: the norm, over the world, sees that their divisors differ") {
  if (!compared) return;
  std::vector<std::string> said(3);
  belay::host::world{3}.run([&](belay::host::rank& rank) {
    const belay::mesh mesh{rank, {.pipeline = 3}};
    belay::parameter<float> p{{.name = "stage" + std::to_string(rank.number()), .shape = {5}}};
    belay::gradient_buckets<float, group> buckets{{{p, 0}}, {{mesh.replicas()}}, 64, 1};
    std::vector<float> values(buckets.layout().elements());
    std::vector<float> gradients(buckets.layout().gradient_elements());
    buckets.bind(values, gradients);
    belay::norm_table table;
    for (int stage = 0; stage < 3; ++stage) table.add(5);
    std::vector<double> squares(table.entries());
    belay::gradient_norm<float> norm{table, {{static_cast<std::size_t>(rank.number()), 0}}, squares};
    for (std::size_t last_stage : {10u, 30u}) {
      buckets.begin(0);
      const auto reduced = buckets.finish(belay::target_tokens{rank.number() == 2 ? last_stage : 30});
      try {
        static_cast<void>(norm(reduced, mesh.control()));
        CHECK(last_stage == 30);
      } catch (const belay::usage_error& e) {
        said[static_cast<std::size_t>(rank.number())] = e.what();
      }
    }
  });
  for (const std::string& text : said)
    CHECK_MESSAGE(holds(text, "target_tokens differ between ranks (ranks 0, 1: 30; rank 2: 10)"), text);
}

TEST_CASE("a rank that ends its step otherwise does not keep the others waiting, and the next step goes well") {
  belay::host::world{3}.run([&](belay::host::rank& rank) {
    const belay::mesh mesh{rank, {.data = 3}};
    rank_buckets made(mesh, belay::zero_stage::optimizer_state, slip::none);
    auto& buckets = *made.buckets;
    for (int way = 0; way < 6; ++way) {
      const bool mine = rank.number() == way % 3;
      const bool summed = way >= 3;
      const auto finish = [&] {
        if (summed)
          static_cast<void>(buckets.finish(belay::local_targets{10}, mesh.data()));
        else
          static_cast<void>(buckets.finish(belay::target_tokens{30}));
      };
      buckets.begin(1);  // one abandons
      buckets.contributed(0, mine ? 1 : buckets.parameters(), 0);
      if (!mine)
        finish();
      else if (summed)
        buckets.abandon(mesh.data());
      else
        buckets.abandon();
      buckets.begin(1);  // one's gradients changed too late
      buckets.contributed(0, buckets.parameters(), 0);
      if (mine && belay::checked(belay::check_level::local)) {
        made.parameters[0].gradient()[0] = 1;
        CHECK_THROWS_WITH_AS(finish(), Contains("gradient of parameter wte changed"), belay::usage_error);
      } else {
        finish();
      }
    }
    buckets.begin(1);
    made.parameters[0].gradient()[0] = 10;
    buckets.contributed(0, buckets.parameters(), 0);
    const auto reduced = buckets.finish(belay::target_tokens{30});
    for (const auto& range : reduced.owned())
      if (range.parameter == 0) CHECK(range.gradient[0] == doctest::Approx(1));
  });
}
