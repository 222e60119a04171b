// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/span_log.hpp"
#include "belay/kernel.hpp"
#include "belay/parallel/parameter.hpp"
#include "belay/step.hpp"

namespace {

using matrix = belay::view<const float, 2>;
constexpr std::size_t rows = 4, width = 3;

// Contributions in their order; the first of a step writes.
struct recorder final : belay::contribution_target {
  std::vector<std::size_t> micro_batches;
  std::string name;
  void contribute(std::size_t micro_batch, const belay::stream_event&, belay::where) override {
    micro_batches.push_back(micro_batch);
  }
  [[nodiscard]] std::string_view parameter_name() const noexcept override { return name; }
};

// y = x W, with the sums of the columns of y added to `bias` by a kernel.
struct projection {
  projection() {
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i % 5) - 1.5F;
    weight.bind(weights.data(), weight_sum.data(), &to_weight);
    bias.bind(biases.data(), bias_sum.data(), &to_bias);
    begin();
  }
  void begin() {
    to_weight.begin_unwritten(), to_bias.begin_unwritten();
    to_weight.micro_batches.clear(), to_bias.micro_batches.clear();
  }

  struct residue {
    belay::view<float, 2> out;
    matrix x;
    belay::view<float, 2> unused;
  };
  [[nodiscard]] static const char* name() { return "projection"; }
  residue forward(auto& frame, matrix x) {
    const residue r{belay::keep<float>(frame, {x.extent(0), width}), x, belay::keep<float>(frame, {64, 64})};
    frame.product(r.out, x, frame.read(weight));
    return r;
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) {
    const auto scope = frame.scratch_scope();
    const auto copy = belay::scratch<float>(frame, dy.shape());  // what the additions read, and nobody else
    frame.each(dy.size(), belay::kernel::copy<float, float>{dy.data(), copy.data()});
    const matrix noted = copy;
    frame.product(frame.add_to(weight), transposed(r.x), noted);
    frame.columns_into(
        frame.add_to(bias),
        [](float* sums, matrix terms) {
          return belay::kernel::column_sums<term, float>{{terms.data()}, sums, terms.extent(0), terms.extent(1)};
        },
        noted);
    frame.product(dx, noted, transposed(frame.read(weight)));
    if (overwrites) frame.each(copy.size(), belay::kernel::fill<float>{copy.data(), 7});
    if (asks_for_memory) static_cast<void>(frame.add_to(bias).data());
  }
  struct term {
    const float* values;
    BELAY_HD float operator()(std::size_t row, std::size_t column) const { return values[row * width + column]; }
  };

  std::array<float, width * width> weights{}, weight_sum{};
  std::array<float, width> biases{}, bias_sum{};
  belay::parameter<float> weight{"weight", {width, width}}, bias{"bias", {width}};
  recorder to_weight, to_bias;
  bool overwrites = false, asks_for_memory = false;
};

struct bench {
  belay::tier_meter meter;
  belay::host_engine engine{belay::host_pages(1 << 20), meter};
  std::array<float, rows * width> values{}, dvalues{};
  bench() {
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i % 7) / 4;
      dvalues[i] = static_cast<float>((i * 5) % 11) / 8 - 0.5F;
    }
  }
  [[nodiscard]] matrix x() const { return {values.data(), {rows, width}}; }
  [[nodiscard]] matrix dy() const { return {dvalues.data(), {rows, width}}; }
};

struct sums {
  std::array<float, width * width> weight;
  std::array<float, width> bias;
  std::vector<float> dx;
  bool operator==(const sums&) const = default;
};

std::vector<float> copy_of(belay::view<const float, 2> of) { return {of.data(), of.data() + of.size()}; }

sums whole(bench& b, std::size_t micro_batches) {
  projection layer;
  std::vector<float> dx;
  belay::step step{b.engine};
  for (std::size_t m = 0; m < micro_batches; ++m) {
    auto y = belay::forward(step.micro_batch(m), layer, b.x());
    dx = copy_of(std::move(y).backward(b.dy()));
  }
  auto outcome = std::move(step).commit();
  REQUIRE(belay::committed(outcome) != nullptr);
  return {layer.weight_sum, layer.bias_sum, dx};
}

}  // namespace

TEST_CASE("two halves give the bits of one backward, however late the second comes") {
  bench b;
  const sums expected = whole(b, 2);
  projection layer;
  sums got{};
  {
    belay::step step{b.engine};
    auto first = belay::forward(step.micro_batch(0), layer, b.x());
    auto first_half = std::move(first).backward_input(b.dy());
    auto second = belay::forward(step.micro_batch(1), layer, b.x());
    auto second_half = std::move(second).backward_input(b.dy());
    CHECK(layer.to_weight.micro_batches.empty());
    CHECK(layer.to_weight.unwritten());
    CHECK(b.engine.obligations().open_count() == 2);
    const auto dx = second_half.input_gradient();
    got.dx = copy_of(dx);
    std::move(first_half).weights();
    std::move(second_half).weights();
    CHECK(layer.to_weight.micro_batches == std::vector<std::size_t>{0, 1});
    CHECK(layer.to_bias.micro_batches == std::vector<std::size_t>{0, 1});
    auto outcome = std::move(step).commit();
    CHECK(belay::committed(outcome) != nullptr);
  }
  got.weight = layer.weight_sum, got.bias = layer.bias_sum;
  CHECK(got == expected);
  CHECK(b.meter.live_bytes() == 0);
}

TEST_CASE("between the halves only what the notes read is leased") {
  bench b;
  projection layer;
  belay::step step{b.engine};
  auto input = belay::forward(step, layer, b.x());
  auto y = belay::forward(step, layer, input.out());
  const std::size_t before = b.meter.live_bytes();
  auto half = std::move(y).backward_input(b.dy());
  // Of y: its copy of dy; its output and what it kept beside are gone. The input's gradient is the handle's.
  constexpr std::size_t tensor = belay::leased_size(rows * width * sizeof(float));
  CHECK(b.meter.live_bytes() == before - tensor - 64 * 64 * sizeof(float) + 2 * tensor);
  auto below = std::move(input).backward_input(half.input_gradient());
  // The input of y is held by its note, and so is the gradient that nobody owns any more, by none: it was copied.
  CHECK(b.meter.live_bytes() == 4 * tensor);
  std::move(half).weights();
  CHECK(b.meter.live_bytes() == 2 * tensor);
  std::move(below).weights();
  CHECK(b.meter.live_bytes() == 0);
  auto outcome = std::move(step).commit();
  CHECK(belay::committed(outcome) != nullptr);
}

TEST_CASE("a backward that asks for a gradient's memory adds everything in its first half") {
  bench b;
  const sums expected = whole(b, 1);
  projection layer, notes;
  layer.asks_for_memory = true;
  std::array<belay::traced_span, 16> room;
  belay::span_log log(room);
  b.engine.trace_into(&log);
  belay::step step{b.engine};
  auto y = belay::forward(step.micro_batch(0), layer, b.x());
  auto z = belay::forward(step.micro_batch(0), notes, b.x());
  auto half = std::move(y).backward_input(b.dy());
  CHECK(half.added_at_once());
  auto other = std::move(z).backward_input(b.dy());
  CHECK_FALSE(other.added_at_once());
  std::move(other).weights();
  CHECK(layer.weight_sum == expected.weight);
  CHECK(layer.to_bias.micro_batches.size() == 1);
  std::move(half).weights();
  CHECK(layer.bias_sum == expected.bias);
  CHECK(layer.to_bias.micro_batches.size() == 1);
  auto outcome = std::move(step).commit();
  CHECK(belay::committed(outcome) != nullptr);
  b.engine.trace_into(nullptr);
  CHECK(b.engine.notes().added_at_once() == 1);
  std::string calls;
  for (const belay::traced_span& each : log.spans())
    if (each.kind == belay::span_kind::layer) calls += std::string(each.call) + ";";
  CHECK(calls == "forward;forward;input gradient;weights at once;input gradient;weight gradient;weight gradient;");
}

namespace {
// A projection without the bias, with both halves written out.
struct written {
  explicit written(projection& of) : as(&of) {}
  struct residue {
    belay::view<float, 2> out;
    matrix x;
  };
  struct kept_operands {
    matrix x, dy;
  };
  [[nodiscard]] static const char* name() { return "written"; }
  residue forward(auto& frame, matrix x) {
    const residue r{belay::keep<float>(frame, {x.extent(0), width}), x};
    frame.product(r.out, x, frame.read(as->weight));
    return r;
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) {
    backward_weights(frame, backward_input(frame, std::move(r), dy, dx));
  }
  kept_operands backward_input(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) {
    frame.product(dx, dy, transposed(frame.read(as->weight)));
    return {r.x, dy};
  }
  void backward_weights(auto& frame, kept_operands&& of) {
    frame.product(frame.add_to(as->weight), transposed(of.x), of.dy);
    ++late;
  }
  projection* as;
  int late = 0;
};
}  // namespace

TEST_CASE("a layer that writes both halves is called for each, and keeps all that its forward has kept") {
  bench b;
  const sums expected = whole(b, 1);
  projection parameters;
  written layer(parameters);
  belay::step step{b.engine};
  auto y = belay::forward(step.micro_batch(0), layer, b.x());
  const std::size_t before = b.meter.live_bytes();
  auto half = std::move(y).backward_input(b.dy());
  CHECK(layer.late == 0);
  CHECK(b.meter.live_bytes() == 2 * before);  // its output, and the gradient of its input
  const auto dx = half.input_gradient();
  CHECK(copy_of(dx) == expected.dx);
  std::move(half).weights();
  CHECK(layer.late == 1);
  CHECK(parameters.weight_sum == expected.weight);
  CHECK(parameters.to_weight.micro_batches.size() == 1);
  auto outcome = std::move(step).commit();
  CHECK(belay::committed(outcome) != nullptr);
}

namespace {
// Adds its gradient, by rows of two experts times a matrix of each, to a parameter of as many rows.
struct grouped_rows {
  grouped_rows() {
    table.bind(values.data(), gradient.data(), &to_table);
    to_table.begin_unwritten();
    for (std::size_t i = 0; i < matrices.size(); ++i) matrices[i] = static_cast<float>(i % 4) - 1;
  }
  struct residue {
    belay::view<float, 2> out;
  };
  [[nodiscard]] static const char* name() { return "grouped rows"; }
  residue forward(auto& frame, matrix x) { return {belay::keep<float>(frame, x.shape())}; }
  void backward(auto& frame, residue&&, matrix dy, belay::view<float, 2>) {
    frame.grouped(frame.add_to(table), dy, belay::view<const float, 3>{matrices.data(), {2, width, width}},
                  belay::view<const std::size_t, 1>{ends.data(), {2}});
  }
  std::array<float, rows * width> values{}, gradient{};
  std::array<float, 2 * width * width> matrices{};
  std::array<std::size_t, 2> ends{1, rows};
  belay::parameter<float> table{"table", {rows, width}};
  recorder to_table;
};
}  // namespace

TEST_CASE("rows of experts that are added to a gradient are noted, too") {
  bench b;
  grouped_rows at_once, later;
  belay::step step{b.engine};
  auto whole_call = belay::forward(step, at_once, b.x());
  static_cast<void>(std::move(whole_call).backward(b.dy()));
  auto call = belay::forward(step, later, b.x());
  auto half = std::move(call).backward_input(b.dy());
  CHECK(later.to_table.unwritten());
  CHECK(later.to_table.micro_batches.empty());
  std::move(half).weights();
  CHECK(later.gradient == at_once.gradient);
  CHECK(later.gradient != decltype(later.gradient){});
  CHECK(later.to_table.micro_batches.size() == 1);
  auto outcome = std::move(step).commit();
  CHECK(belay::committed(outcome) != nullptr);
}

TEST_CASE("what a note reads and somebody writes before its weights is refused by name") {
  if constexpr (belay::checked(belay::check_level::local)) {
    bench b;
    projection layer;
    layer.overwrites = true;
    belay::step step{b.engine};
    auto y = belay::forward(step.micro_batch(3), layer, b.x());
    auto half = std::move(y).backward_input(b.dy());
    std::string text;
    try {
      std::move(half).weights();
    } catch (const belay::usage_error& error) {
      text = error.what();
    }
    std::move(step).cut_off();
    CHECK(text.find("parameter weight was overwritten") != std::string::npos);
    CHECK(text.find("layer 0 'projection' (micro-batch 3)") != std::string::npos);
  }
}

namespace {
template <class Handle>
struct hidden {
  Handle handle;
};
}  // namespace

TEST_CASE("a lost second half keeps the step from committing, and is named") {
  bench b;
  projection layer;
  belay::step step{b.engine};
  {
    auto y = belay::forward(step.micro_batch(2), layer, b.x());
    auto lost = hidden{std::move(y).backward_input(b.dy())};
    static_cast<void>(lost.handle.call());
  }
  std::string text;
  try {
    auto outcome = std::move(step).commit();
    if (const auto* why = belay::refused(outcome)) text = why->list;
  } catch (const belay::open_obligations& error) {
    text = error.what();
  }
  CHECK(text.find("weight-gradient job of layer 0 'projection' (micro-batch 2") != std::string::npos);
  CHECK(text.find("its weight gradient was never computed") != std::string::npos);
  CHECK(b.meter.live_bytes() == 0);
  CHECK(b.engine.notes().used() == 0);
  layer.begin();
  belay::step next{b.engine};
  for (std::size_t m = 0; m < 2; ++m) {
    auto y = belay::forward(next.micro_batch(m), layer, b.x());
    std::move(y).backward_input(b.dy()).weights();
  }
  auto outcome = std::move(next).commit();
  CHECK(belay::committed(outcome) != nullptr);
  bench fresh;
  const sums expected = whole(fresh, 2);
  CHECK(layer.weight_sum == expected.weight);
  CHECK(layer.bias_sum == expected.bias);
}
