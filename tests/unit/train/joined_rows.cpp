// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Parameters that follow each other lie one behind the other wherever a store has them, so that a layer multiplies by
// all of them at once. Each stays what it was: its name, its first values, its gradient.
#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/loss.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/store.hpp"

namespace {

using matrix = belay::view<const float, 2>;
constexpr std::size_t width = 16, tokens = 3, outputs = 9;

// One product for all parameters, one each, or one for all when one of them has a gradient already.
enum class products { one, each, one_after_another };

belay::parameter_spec following(const char* name, std::size_t rows, const char* follows) {
  belay::parameter_spec spec{name, {rows, width}, belay::initial::normal(0.5)};
  spec.follows = follows;
  return spec;
}

template <class Learning>
struct three_matrices {
  using matrix_type = belay::parameter<float, belay::replicate, Learning>;
  products how;
  matrix_type query{following("query", 5, "")}, key{following("key", 2, "query")}, value{following("value", 2, "key")};
  belay::parameter<float> scale{"scale", {outputs}};
  bool together = true;  // in every call so far
  struct residue {
    belay::view<float, 2> out;
    matrix x;
  };

  [[nodiscard]] static const char* name() { return "three"; }
  residue forward(auto& frame, matrix x) {
    const auto y = belay::keep<float>(frame, {tokens, outputs});
    const auto all = belay::joined_rows(frame.read(query), frame.read(key), frame.read(value));
    if (!frame.rehearsing()) together = together && all.data != nullptr && all.rows == outputs;
    const belay::operand<float> out = y;
    if (how != products::each && all.data != nullptr) {
      frame.product(out, x, belay::transposed(all));
    } else {
      frame.product(out.column_range(0, 5), x, belay::transposed(frame.read(query)));
      frame.product(out.column_range(5, 2), x, belay::transposed(frame.read(key)));
      frame.product(out.column_range(7, 2), x, belay::transposed(frame.read(value)));
    }
    return {y, x};
  }
  void backward(auto& frame, residue&& r, matrix dy) {
    frame.adds_nothing(scale);
    if constexpr (belay::has_gradient<Learning>) {
      if (how == products::one_after_another) frame.adds_nothing(key);
      const belay::operand<const float> dout = dy;
      const belay::joined_sums all{frame.add_to(query), frame.add_to(key), frame.add_to(value)};
      if (!frame.rehearsing()) together = together && all.adjacent();
      if (how != products::each && all.adjacent())
        return frame.product(belay::adding_to(all), belay::transposed(dout), r.x);
      frame.product(frame.add_to(query), belay::transposed(dout.column_range(0, 5)), r.x);
      frame.product(frame.add_to(key), belay::transposed(dout.column_range(5, 2)), r.x);
      frame.product(frame.add_to(value), belay::transposed(dout.column_range(7, 2)), r.x);
    }
  }
  void for_each_parameter(auto&& visit) { visit(query), visit(key), visit(value), visit(scale); }
};

struct without_key {
  belay::parameter<float> query{following("query", 5, "")}, value{following("value", 2, "key")};
  void for_each_parameter(auto&& visit) { visit(query), visit(value); }
};

struct result {
  std::vector<double> losses, norms;
  std::vector<float> values;
  bool together = true;
  bool operator==(const result&) const = default;
};

// Two steps of two micro-batches. A bucket has room for one parameter of five rows, or two.
template <int Stage, class Learning = belay::trainable>
result train(int ranks, products how) {
  result out;
  belay::launch(belay::host::world{ranks}, [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    three_matrices<Learning> net{how};
    belay::parameter_store store{run, mesh, net, belay::zero<Stage>{},
                                 belay::store_options{.seed = 3, .bucket_bytes = 5 * width * sizeof(float)}};
    belay::gathers layer{net, store};
    belay::adamw optimizer{store};
    float x[2 * tokens * width], target[tokens * outputs] = {};
    for (std::size_t i = 0; i < 2 * tokens * width; ++i) x[i] = static_cast<float>(i * i % 23) / 11 - 1;
    for (auto number : run.steps(2)) {
      static_cast<void>(number);
      belay::step step{run.engine(), store};
      step.micro_batches(2);
      for (std::size_t m = 0; m < 2; ++m) {
        const auto scope = step.micro_batch(m);
        auto y = belay::forward(scope, layer, belay::constant(matrix{x + m * tokens * width, {tokens, width}}));
        auto [loss, grad] = belay::squared_error(scope, y.out(), matrix{target, {tokens, outputs}});
        std::move(y).backward(grad);
      }
      auto outcome = std::move(step).commit(mesh, belay::samples{2 * tokens * static_cast<std::size_t>(ranks)});
      auto* const ok = belay::committed(outcome);
      if (ok == nullptr) continue;
      run.report(*ok, [&](const belay::step_summary& end) {
        if (rank.number() != 0) return;
        out.losses.push_back(end.mean_loss());
        out.norms.push_back(end.norm);
      });
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-2, .clip = 1.0});
    }
    for (auto* one : {&net.query, &net.key, &net.value}) {
      const auto all = store.read(*one);
      if (!run.rehearsing() && rank.number() == 0)
        out.values.insert(out.values.end(), all.values().begin(), all.values().end());
    }
    if (rank.number() == 0) out.together = out.together && net.together;
  });
  return out;
}

}  // namespace

TEST_CASE("parameters that follow each other are multiplied by at once, divided or whole, with the values of three") {
  const result expected = train<0>(1, products::each);
  CHECK(expected.norms.at(1) > 0);
  for (const products how : {products::one, products::each, products::one_after_another})
    for (const int ranks : {1, 2, 3}) {
      CAPTURE(static_cast<int>(how));
      CAPTURE(ranks);
      for (const result& got :
           {train<0>(ranks, how), train<1>(ranks, how), train<2>(ranks, how), train<3>(ranks, how)}) {
        CHECK(got.together);
        if (ranks == 1) CHECK(got == expected);
        for (std::size_t i = 0; i < expected.values.size(); ++i)
          CHECK(got.values.at(i) == doctest::Approx(expected.values[i]).epsilon(1e-5));
      }
    }
}

TEST_CASE("and so are frozen ones") {
  for (const int ranks : {1, 2}) {
    const result one = train<3, belay::frozen>(ranks, products::one);
    CHECK(one.together);
    CHECK(one == train<3, belay::frozen>(ranks, products::each));
  }
}

TEST_CASE("each has the first values that it has alone") {
  belay::parameter<float> alone{{"key", {2, width}, belay::initial::normal(0.5)}};
  belay::parameter<float> follower{following("key", 2, "query")};
  std::vector<float> one(2 * width), other(2 * width), gradients(2 * width);
  alone.bind(one.data(), gradients.data());
  follower.bind(other.data(), gradients.data());
  alone.initialise(7);
  follower.initialise(7);
  CHECK(one == other);
}

TEST_CASE("a parameter follows the one before it in the model, or the store refuses it by name") {
  const auto body = [](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    without_key net;
    const belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
  };
  std::string said;
  try {
    belay::launch(belay::host::world{2}, body);
  } catch (const belay::usage_error& problem) {
    said = problem.what();
  }
  CHECK(said.find("parameter value follows key, which is not the one before it in for_each_parameter") !=
        std::string::npos);
}

TEST_CASE("rows that do not lie one behind the other are not joined") {
  float memory[64] = {};
  const matrix first{memory, {2, 4}}, behind{memory + 8, {1, 4}}, wider{memory + 8, {1, 8}}, apart{memory + 16, {1, 4}};
  CHECK(belay::joined_rows(first, behind).rows == 3);
  CHECK(belay::joined_rows(first, behind).data == memory);
  for (const matrix& other : {wider, apart}) CHECK(belay::joined_rows(first, other).data == nullptr);
  CHECK(belay::joined_rows(first, belay::transposed(behind)).data == nullptr);
  CHECK(belay::joined_rows(belay::operand<const float>(memory, 2, 3, 4), behind).data == nullptr);
  CHECK(belay::joined_rows(matrix{nullptr, {0, 4}}, matrix{nullptr, {0, 4}}).data == nullptr);
}
