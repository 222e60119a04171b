// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/train/loss.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/belay.hpp"

namespace {

using belay::bf16;
using belay::view;

constexpr std::size_t rows = 5, width = 37;
const std::vector<std::int32_t> targets{0, 36, belay::kernel::ignored_target, 7, 7};

// Numbers that bf16 can show, so that losses over both types see the same.
template <class T>
std::vector<T> outputs(double scale) {
  std::vector<T> out;
  for (std::size_t i = 0; i < rows * width; ++i)
    out.push_back(static_cast<T>(static_cast<float>(bf16(static_cast<float>(scale * std::sin(1.7 * double(i)))))));
  return out;
}

struct found {
  double mean = 0;
  double evaluated = 0;
  std::vector<float> gradient;
};

// A step's participant that has no gradients: the loss is all.
struct onlooker final : belay::participant {
  void begin(const belay::step_start&, belay::where) override {}
  [[nodiscard]] std::uint64_t fingerprint() const noexcept override { return 1; }
};

enum class which { cross_entropy, squared_error };

// A loss in a step and in a forward-only pass, as the means that both report.
template <class T>
found measure(which loss, double scale, const std::vector<T>& values, double factor = 1) {
  found out;
  const auto wanted = outputs<belay::compute_type_t<T>>(0.5 * scale);
  belay::launch(belay::host::world{1}, [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {}};
    onlooker watching;
    const view<const T, 2> seen{values.data(), {rows, width}};
    const view<const std::int32_t, 1> classes{targets.data(), {rows}};
    const view<const belay::compute_type_t<T>, 2> numbers{wanted.data(), {rows, width}};
    for (auto number : run.steps(1)) {
      static_cast<void>(number);
      belay::step step{run.engine(), watching};
      auto noted = loss == which::cross_entropy ? belay::cross_entropy(step, seen, classes, factor)
                                                : belay::squared_error(step, seen, numbers);
      if (!run.rehearsing())
        for (T each : std::vector<T>(noted.gradient.values().data(), noted.gradient.values().data() + rows * width))
          out.gradient.push_back(static_cast<float>(each));
      auto outcome = loss == which::cross_entropy ? std::move(step).commit(mesh, belay::target_tokens{4})
                                                  : std::move(step).commit(mesh, belay::samples{rows});
      if (auto* ok = belay::committed(outcome)) {
        // No participant has divided: the summary's loss is the sum.
        const double count = loss == which::cross_entropy ? 4 : rows;
        run.report(*ok, [&](const belay::step_summary& of) { out.mean = of.loss / count; });
        std::move(*ok).discard();
      }
      const auto evaluation = belay::evaluate(run, mesh, [&] {
        belay::forward_only pass{run.engine()};
        if (loss == which::cross_entropy)
          belay::cross_entropy(pass, seen, classes);
        else
          belay::squared_error(pass, seen, numbers);
      });
      run.report(evaluation, [&](double mean) { out.evaluated = mean; });
    }
  });
  return out;
}

}  // namespace

TEST_CASE("losses over bf16 are those over float, and their gradients are float's, rounded once") {
  for (const which loss : {which::cross_entropy, which::squared_error}) {
    for (const double scale : {0.01, 3.0, 80.0}) {
      CAPTURE(scale);
      const found narrow = measure(loss, scale, outputs<bf16>(scale)),
                  wide = measure(loss, scale, outputs<float>(scale));
      CHECK(narrow.mean == doctest::Approx(wide.mean).epsilon(1e-6));
      CHECK(narrow.evaluated == doctest::Approx(wide.mean).epsilon(1e-6));
      REQUIRE(narrow.gradient.size() == rows * width);
      std::size_t unlike = 0;
      for (std::size_t i = 0; i < rows * width; ++i) {
        CHECK(narrow.gradient[i] == doctest::Approx(wide.gradient[i]).epsilon(0x1p-8));
        if (narrow.gradient[i] != static_cast<float>(bf16(wide.gradient[i]))) ++unlike;
      }
      CHECK(unlike <= rows);  // next to a tie, where the last bit of float decides
    }
  }
}

TEST_CASE("a cross-entropy over bf16 keeps what bf16 sums would lose: many classes of small probability") {
  const found narrow = measure(which::cross_entropy, 0.0, outputs<bf16>(0.0));
  CHECK(narrow.mean == doctest::Approx(std::log(double(width))).epsilon(1e-6));
  // The gradient of a row sums to zero but for the rounding of each element.
  double sum = 0;
  for (std::size_t i = 0; i < width; ++i) sum += static_cast<double>(narrow.gradient[i]);
  CHECK(std::abs(sum) < 2.0 * 0x1p-8);
}

TEST_CASE("rows without a target have no gradient, and the scale is the gradient's alone") {
  const auto values = outputs<bf16>(1.0);
  const found once = measure(which::cross_entropy, 1.0, values), half = measure(which::cross_entropy, 1.0, values, 0.5);
  CHECK(once.mean == half.mean);
  for (std::size_t i = 0; i < width; ++i) CHECK(once.gradient[2 * width + i] == 0);
  for (std::size_t i = 0; i < rows * width; ++i)
    CHECK(half.gradient[i] == doctest::Approx(once.gradient[i] / 2).epsilon(0x1p-7));
}

TEST_CASE("a target that is none is a named error of the commit and of an evaluation, on every stream") {
  const auto values = outputs<float>(1.0);
  const std::vector<std::int32_t> wrong{0, 1, 2, 37, -5};
  for (const belay::stream_policy how :
       {belay::stream_policy::immediate, belay::stream_policy::queued, belay::stream_policy::adversarial}) {
    const auto run_a = [&](auto&& body) { belay::launch(belay::host::world{1}, body, {.streams = {how, 0}}); };
    const view<const float, 2> seen{values.data(), {rows, width}};
    const view<const std::int32_t, 1> classes{wrong.data(), {rows}};
    CHECK_THROWS_WITH_AS(run_a([&](auto& rank, auto& run) {
                           belay::mesh mesh{rank, {}};
                           onlooker watching;
                           belay::step step{run.engine(), watching};
                           step.micro_batches(2);
                           static_cast<void>(belay::cross_entropy(step.micro_batch(1), seen, classes));
                           static_cast<void>(std::move(step).commit(mesh, belay::target_tokens{5}));
                         }),
                         doctest::Contains("'cross_entropy' (micro-batch 1): index 37 at position 3 is not below 37, "
                                           "and 1 more"),
                         belay::usage_error);
    CHECK_THROWS_WITH_AS(run_a([&](auto& rank, auto& run) {
                           belay::mesh mesh{rank, {}};
                           static_cast<void>(belay::evaluate(run, mesh, [&] {
                             belay::forward_only pass{run.engine()};
                             belay::cross_entropy(pass, seen, classes);
                           }));
                         }),
                         doctest::Contains("index 37 at position 3 is not below 37"), belay::usage_error);
    CHECK_THROWS_WITH_AS(run_a([&](auto& rank, auto& run) {
                           belay::mesh mesh{rank, {}};
                           {
                             belay::forward_only pass{run.engine()};
                             belay::cross_entropy(pass, seen, classes);
                           }
                           belay::step step{run.engine()};
                           step.cut_off();
                         }),
                         doctest::Contains("index 37 at position 3 is not below 37"), belay::usage_error);
  }
}

TEST_CASE("a loss that is not finite is named, with its line, where the step is refused") {
  auto values = outputs<float>(1.0);
  values[40] = std::numeric_limits<float>::infinity();
  std::string list;
  belay::launch(belay::host::world{1}, [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {}};
    onlooker watching;
    for (auto number : run.steps(1)) {
      static_cast<void>(number);
      belay::step step{run.engine(), watching};
      static_cast<void>(belay::cross_entropy(step, view<const float, 2>{values.data(), {rows, width}},
                                             view<const std::int32_t, 1>{targets.data(), {rows}}));
      if (!run.rehearsing()) step.observe({.non_finite = 1});  // its gradients
      auto outcome = std::move(step).commit(mesh, belay::target_tokens{4});
      if (const auto* why = belay::refused(outcome)) list = why->list;
      if (auto* ok = belay::committed(outcome)) std::move(*ok).discard();
    }
  });
  CHECK(list.find("  'cross_entropy' (micro-batch 0): the loss is not finite, at ") != std::string::npos);
  CHECK(list.find("loss.cpp:") != std::string::npos);
}

TEST_CASE("a step in which an infinity became NaN in 8 bits is refused, finite as its gradients may be") {
  std::vector<float> row(40, 1.0F);
  std::vector<belay::fp8_e4m3> narrow(row.size());
  std::vector<belay::e8m0> scales(belay::mxfp8::layout.scales(row.size()));
  std::vector<std::string> lists;
  belay::launch(belay::host::world{1}, [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {}};
    onlooker watching;
    for (auto number : run.steps(2)) {
      row[33] = number == 1 ? std::numeric_limits<float>::infinity() : 1.0F;
      belay::step step{run.engine(), watching};
      run.engine().kit().teams(1, belay::kernel::quantize_rows<belay::mxfp8, float>{
                                      row.data(),
                                      narrow.data(),
                                      scales.data(),
                                      row.size(),
                                      {run.engine().found(), {"experts", "trainer.cpp", 7, 2, 1}}});
      auto outcome = std::move(step).commit(mesh, belay::target_tokens{4});
      const auto* const why = belay::refused(outcome);
      if (!run.rehearsing()) lists.push_back(why == nullptr ? "committed" : why->list);
      if (auto* ok = belay::committed(outcome)) std::move(*ok).discard();
    }
  });
  REQUIRE(lists.size() == 2);
  CHECK(
      lists[0].find("layer 2 'experts' (micro-batch 1): row 0 has an infinity or a NaN where it is rounded to 8 bits, "
                    "at trainer.cpp:7") != std::string::npos);
  CHECK(lists[1] == "committed");
}
