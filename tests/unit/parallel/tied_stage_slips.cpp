// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A weight that stages of a pipeline share: its sums, its norm, what is no declaration of one, and ranks that end.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/step.hpp"
#include "belay/train.hpp"

namespace {

constexpr std::size_t width = 5;
using row = belay::view<const float, 1>;

belay::parameter_spec shared(std::size_t uses = 2) {
  return {.name = "shared",
          .shape = {width},
          .first_values = belay::initial::normal(1),
          .uses = uses,
          .tied = belay::tied_over::stages};
}

// Adds the same number to each element of the gradient.
struct adding {
  belay::parameter<float>* weight;
  float number;
  struct residue {
    belay::view<float, 1> out;
  };
  residue forward(auto& frame, row x) { return {belay::keep<float>(frame, x.shape())}; }
  void backward(auto& frame, residue&&, row, belay::view<float, 1>) {
    const belay::view<float, 1> sum = frame.add_to(*weight);
    frame.run([=, each = number] {
      for (std::size_t i = 0; i < sum.size(); ++i) sum.data()[i] += each;
    });
  }
};

template <class Learning = belay::trainable>
struct stage {
  std::vector<belay::parameter<float, belay::replicate, Learning>> weights;
  explicit stage(std::initializer_list<belay::parameter_spec> specs) {
    for (const belay::parameter_spec& each : specs) weights.emplace_back(each);
  }
  void for_each_parameter(auto&& visit) {
    for (auto& each : weights) visit(each);
  }
};

template <class Body>
std::vector<std::string> said_by_ranks(int ranks, const belay::axes& shape, Body body) {
  std::vector<std::string> out(static_cast<std::size_t>(ranks));
  belay::launch(belay::host::world{ranks}, [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, shape};
    std::string said;
    try {
      body(run, mesh);
    } catch (const belay::usage_error& problem) {
      said = problem.what();
    }
    if (!run.rehearsing()) out[static_cast<std::size_t>(rank.number())] = said;
  });
  return out;
}
void check_said(const std::vector<std::string>& all, std::initializer_list<const char*> parts) {
  for (const std::string& each : all)
    for (const char* part : parts) CHECK_MESSAGE(each.find(part) != std::string::npos, each);
}
// What ranks say of stores of stages with these, one a stage.
std::vector<std::string> refused(std::vector<std::vector<belay::parameter_spec>> stages) {
  const int ranks = static_cast<int>(stages.size());
  return said_by_ranks(2 * ranks, {.pipeline = ranks, .data = 2}, [&](auto& run, auto& mesh) {
    stage<> net({});
    for (auto& each : stages[static_cast<std::size_t>(mesh.layout_coordinate().pipeline)])
      net.weights.emplace_back(each);
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
  });
}
belay::parameter_spec other(const char* name) { return {.name = name, .shape = {3}}; }

// Named before the store: in its second step it ends its rank in the commit, asks
// for a repeat, or has its layer add what is not finite.
struct ending final : belay::participant {
  enum class way { none, throws, overflows, explodes } how = way::none;
  std::size_t steps = 0, room = 1;
  void begin(const belay::step_start&, belay::where) override { ++steps; }
  void finish(const belay::divisor_value&, belay::where) override {
    if (steps == 2 && how == way::throws) throw std::domain_error("this rank ends here");
  }
  [[nodiscard]] belay::ballot findings() override {
    return {.needed_rows = steps == 2 && room == 1 && how == way::overflows ? 8U : 0U};
  }
  [[nodiscard]] std::uint64_t fingerprint() const override { return room; }
  void make_room(std::size_t rows, belay::where) override { room = rows; }
};

// Steps of stages that add `numbers`, and what they give; rank `culprit` ends in its way.
struct stepped {
  std::vector<double> norms;
  std::vector<std::vector<float>> values;
  std::vector<std::string> refused, heard;  // by rank
};
void take(const std::vector<float>& numbers, std::size_t steps, stepped& out, ending::way how = ending::way::none,
          int culprit = 0) {
  const int ranks = static_cast<int>(numbers.size());
  out.values.resize(numbers.size()), out.refused.resize(numbers.size()), out.heard.resize(numbers.size());
  belay::launch(belay::host::world{ranks, {.timeout = std::chrono::seconds(60)}}, [&](auto& rank, auto& run) {
    const auto number = static_cast<std::size_t>(rank.number());
    belay::mesh mesh{rank, {.pipeline = ranks}};
    stage<> net({shared(numbers.size())});
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
    belay::adamw optimizer{store};
    ending end;
    if (!run.rehearsing() && (rank.number() == culprit || how == ending::way::overflows)) end.how = how;
    adding layer{&net.weights.front(), numbers[number]};
    const std::array<float, width> x{};
    for ([[maybe_unused]] const std::size_t each : run.steps(steps)) {
      belay::step step{run.engine(), end, store};
      auto handle = belay::forward(step, layer, row{x.data(), {width}});
      layer.number =
          end.how == ending::way::explodes && end.steps == 2 ? std::numeric_limits<float>::infinity() : numbers[number];
      static_cast<void>(std::move(handle).backward(row{x.data(), {width}}));
      try {
        auto outcome = std::move(step).commit(mesh, belay::samples{1});
        if (auto* const ok = belay::committed(outcome)) {
          if (number == 0 && !run.rehearsing()) out.norms.push_back(ok->summary().norm);
          optimizer.apply(std::move(*ok), {.learning_rate = 1e-2});
        } else if (const auto* const why = belay::refused(outcome)) {
          out.refused[number] = text(*why);
        }
      } catch (const belay::comm_error& problem) {
        if (problem.about().culprits == std::vector{culprit}) out.heard[number] = problem.what();
        throw;
      }
    }
    if (run.rehearsing()) return;
    const auto values = net.weights.front().values();
    out.values[number].assign(values.data(), values.data() + values.size());
  });
}

}  // namespace

TEST_CASE("the norm counts the sum of a shared weight's gradients once, and all stages are updated by it") {
  for (const std::vector<float>& numbers : {std::vector{3.0F, 4.0F}, {1.0F, 2.0F, 4.0F}}) {
    stepped got;
    take(numbers, 2, got);
    REQUIRE(got.norms.size() == 2);
    for (const double norm : got.norms) CHECK(norm == doctest::Approx(7 * __builtin_sqrt(1.0 * width)).epsilon(1e-12));
    for (const auto& each : got.values) CHECK(each == got.values.front());
  }
}

TEST_CASE("gradients of stages are added in the order of stages on each of their ranks") {
  // 1e8 + 1 rounds to 1e8 in float.
  stepped got;
  take({1e8F, -1e8F, 1.0F, 1.0F}, 1, got);
  REQUIRE(got.norms.size() == 1);
  CHECK(got.norms[0] == doctest::Approx(2 * __builtin_sqrt(1.0 * width)).epsilon(1e-12));
  for (const auto& each : got.values) CHECK(each == got.values.front());
}

TEST_CASE("gradients whose sum is not finite are refused, although each of them is") {
  stepped got;
  take({3e38F, 3e38F}, 1, got);
  CHECK(got.norms.empty());
  for (const std::string& each : got.refused) CHECK(each.find("finite") != std::string::npos);
  CHECK(got.values[0] == got.values[1]);
}

TEST_CASE("what is no declaration of a shared weight is refused by name on all ranks") {
  check_said(refused({{{.name = "shared", .shape = {width}}}, {{.name = "shared", .shape = {width}}}}),
             {"stage 0 (ranks 0, 1) and stage 1 (ranks 2, 3)", "both have a parameter shared", "tied_over::stages"});
  check_said(refused({{shared()}, {{.name = "shared", .shape = {width}}}}),
             {"stage 0 (ranks 0, 1) and stage 1 (ranks 2, 3)", "declare parameter shared", "with different uses"});
  check_said(refused({{shared()}, {shared(3)}}), {"declare parameter shared", "with different uses"});
  check_said(refused({{shared()}, {other("a")}, {other("b")}}),
             {"parameter shared is tied over 2 stages", "and 1 list it: stage 0 (ranks 0, 1);"});
  check_said(refused({{shared()}, {shared()}, {shared()}}),
             {"parameter shared is tied over 2 stages", "and 3 list it: stage 0 (ranks 0, 1), stage 1"});
  belay::parameter_spec longer = shared(), undecayed = shared();
  longer.shape = {width + 1};
  undecayed.decay = belay::weight_decay::no;
  check_said(refused({{other("a"), shared()}, {longer}}), {"with different shape or placement"});
  check_said(refused({{shared()}, {other("a"), undecayed}}), {"with different weight decay"});
  CHECK(refused({{other("a"), shared()}, {shared(), other("b")}}) == std::vector<std::string>(4));
  check_said(said_by_ranks(2, {.pipeline = 2},
                           [](auto& run, auto& mesh) {
                             const auto store_of = [&]<class Learning>(stage<Learning> net) {
                               belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
                             };
                             if (mesh.layout_coordinate().pipeline == 0)
                               store_of(stage<>({shared()}));
                             else
                               store_of(stage<belay::frozen>({shared()}));
                           }),
             {"declare parameter shared", "with different training"});
}

TEST_CASE("stages that begin with other values of what they share are told apart in the first step") {
  check_said(said_by_ranks(2, {.pipeline = 2},
                           [](auto& run, auto& mesh) {
                             stage<> net({shared()});
                             belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
                             if (!run.rehearsing() && mesh.layout_coordinate().pipeline == 1)
                               *net.weights[0].value() = 7;
                             belay::step step{run.engine(), store};
                             step.cut_off();
                             if (run.rehearsing()) throw belay::usage_error("", {});
                           }),
             {"rank 0 and rank 1 of the pipeline begin with different values", "shared"});
}

TEST_CASE("a step that is refused or repeated leaves nothing in the sums of a shared weight") {
  stepped expected;
  take({3.0F, 4.0F}, 3, expected);
  REQUIRE(expected.norms.size() == 3);
  for (const int culprit : {0, 1}) {
    stepped refused, repeated;
    take({3.0F, 4.0F}, 4, refused, ending::way::explodes, culprit);
    CHECK(refused.norms == expected.norms);
    CHECK(refused.values == expected.values);
    for (const std::string& each : refused.refused) CHECK_FALSE(each.empty());
    take({3.0F, 4.0F}, 3, repeated, ending::way::overflows, culprit);
    CHECK(repeated.norms == expected.norms);
    CHECK(repeated.values == expected.values);
  }
}

TEST_CASE("a rank that ends while others wait for its gradients of a shared weight is named") {
  for (const int culprit : {0, 2}) {
    stepped got;
    CHECK_THROWS_WITH_AS(take({1.0F, 2.0F, 3.0F}, 3, got, ending::way::throws, culprit), "this rank ends here",
                         std::domain_error);
    for (int rank = 0; rank < 3; ++rank) {
      const std::string& heard = got.heard[static_cast<std::size_t>(rank)];
      CAPTURE(heard);
      CHECK((rank == culprit) == heard.empty());
      if (rank == culprit) continue;
      CHECK(heard.find("exchange") != std::string::npos);
      CHECK(heard.find("rank " + std::to_string(culprit) + " threw ") != std::string::npos);
    }
  }
}

TEST_CASE("stages of one rank read one set of a shared weight's values, and none of it is kept twice") {
  belay::launch(belay::host::world{1}, [](auto& rank, auto& run) {
    belay::mesh mesh{rank, {}};
    const auto expect_one = [&]<class Learning>(stage<Learning>& net) {
      belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
      CHECK(net.weights[0].value() == net.weights[1].value());
      std::size_t stored = 0;
      store.each_stored([&](auto&, const belay::stored_copies&) { ++stored; });
      CHECK(stored == 1);
      CHECK(store.owned_elements(0) == (std::is_same_v<Learning, belay::trainable> ? width : 0));
    };
    stage<> trained({shared(), shared()});
    expect_one(trained);
    CHECK(trained.weights[0].gradient() != trained.weights[1].gradient());
    stage<belay::frozen> constants({shared(), shared()});
    expect_one(constants);
  });
  CHECK(said_by_ranks(2, {.pipeline = 2}, [](auto& run, auto& mesh) {
          stage<belay::frozen> net({shared()});
          belay::parameter_store store{run, mesh, net, belay::zero<3>{}};
        }) == std::vector<std::string>(2));
}
