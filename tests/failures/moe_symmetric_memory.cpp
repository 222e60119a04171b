// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Field failure 3: a mixture of experts over symmetric memory that leaked and trained wrong, because the
// dispatch's result was dropped, its backward never ran, and slots were nobody's. Two stages of two expert
// ranks, a layer each, four micro-batches; beside the right policy two wrong ones that the same checks catch.
// That an ignored dispatch does not compile is tests/compile_fail/moe_dispatch_dropped.cpp. See
// docs/explanation/field_failures/moe_symmetric_memory.md.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/parallel/experts.hpp"
#include "belay/parallel/pipeline.hpp"
#include "belay/parallel/schedule.hpp"
#include "belay/parallel/vote.hpp"
#include "belay/step.hpp"
#include "unit/parallel/support/toy_experts.hpp"

namespace {

using belay::group;
using belay::view;
using engine_type = belay::host_engine;
using exchange_type = belay::expert_exchange<double>;
using scope_type = belay::micro_batch_scope<engine_type>;
using tensor = view<const double, 3>;

constexpr std::size_t micro_batches = 4, experts = 4, k = 2, hidden = 8;
constexpr std::size_t rows = 6, ranks = 2;  // rows of a rank in a micro-batch
constexpr std::size_t all_rows = rows * ranks;
constexpr double balance_scale = 0.1;

/// The toy experts as a layer of a step.
struct moe_layer {
  using inner_type = toy::layer<double, exchange_type>;
  struct residue {
    view<double, 3> out;
    tensor x;
    inner_type::residue inner;
  };

  inner_type inner;
  std::string label;

  [[nodiscard]] const char* name() const { return label.c_str(); }

  template <class Frame>
  residue forward(Frame& frame, tensor x) {
    auto inside = inner.forward(frame, view<const double, 2>{x.data(), {x.extent(0) * x.extent(1), x.extent(2)}});
    return {{inside.out.data(), x.shape()}, x, std::move(inside)};
  }
  template <class Frame>
  void backward(Frame& frame, residue&& saved, tensor dout, view<double, 3> dx) {
    inner.backward(frame, std::move(saved.inner), {dout.data(), saved.inner.out.shape()},
                   {dx.data(), saved.inner.out.shape()}, saved.x.data());
  }
};

/// A policy of a stage: whether it owes the backward of a micro-batch.
struct every_backward {
  static constexpr bool owes(int, std::size_t) { return true; }
};
/// The wrong one: the second stage forgets that of micro-batch 2 and hands on zeros, as a stub would.
struct one_forgotten {
  static constexpr bool owes(int stage, std::size_t micro_batch) { return stage == 0 || micro_batch != 2; }
};

template <class Policy>
struct stage_type {
  using handle = belay::saved<engine_type, moe_layer, tensor>;

  moe_layer* layer;
  int number;
  const std::vector<double>* inputs;  // [micro_batches, rows, hidden] of this rank
  const std::vector<double>* grads;
  belay::handle_store<handle> handles{micro_batches};
  std::array<std::optional<belay::gradient<engine_type, double, 3>>, micro_batches> gradients{};

  [[nodiscard]] static tensor part(const std::vector<double>& all, std::size_t m) {
    return {all.data() + m * rows * hidden, {1, rows, hidden}};
  }
  static constexpr int opening_line = __LINE__ + 3;
  void forward(const scope_type& scope, tensor received) {
    const tensor x = number == 0 ? part(*inputs, scope.micro_batch()) : received;
    handles.keep(scope.micro_batch(), belay::forward(scope, *layer, x));
  }
  [[nodiscard]] tensor output(std::size_t m) const { return handles.at(m).out(); }
  [[nodiscard]] tensor input_gradient(std::size_t m) const { return *gradients[m]; }
  void release(std::size_t m) { gradients[m].reset(); }
  void backward(const scope_type& scope, tensor received) {
    const std::size_t m = scope.micro_batch();
    const tensor dout = number == 1 ? part(*grads, m) : received;
    if (Policy::owes(number, m)) {
      gradients[m].emplace(handles.take(m).backward(dout));
    } else {
      gradients[m].emplace(scope.engine(), dout.shape());
      for (double& value : gradients[m]->values().flat()) value = 0;
      handles.forget();
    }
  }
};

/// One rank of the mesh with everything that could leak, counted.
template <class Policy>
struct counted_rank {
  belay::mesh mesh;
  belay::tier_meter meter;
  belay::symmetric_heap<group> heap;
  engine_type engine{belay::host_pages(4 << 20), meter};
  exchange_type exchange;
  toy::parameters<double> weights;
  moe_layer layer;
  std::vector<double> inputs, grads;
  stage_type<Policy> stage;
  belay::pipeline<double> pipeline;

  counted_rank(belay::host::rank& rank, std::size_t capacity, double crowding)
      : mesh(rank, {.pipeline = 2, .expert = 2}),
        heap(mesh.expert(), {1 << 20, 64, &meter}),
        exchange(mesh.expert(), heap, {experts, k, hidden, capacity}),
        weights(layer_weights(mesh.coordinate().pipeline, crowding)),
        layer{{weights, exchange, k, balance_scale}, "moe." + std::to_string(mesh.coordinate().pipeline)},
        inputs(own(all_inputs(crowding), mesh.coordinate().expert)),
        grads(own(all_grads(), mesh.coordinate().expert)),
        stage{&layer, mesh.coordinate().pipeline, &inputs, &grads},
        pipeline(mesh.pipeline(), belay::schedule::one_f_one_b(2, micro_batches), {1, rows, hidden}) {
    exchange.prepare(0, 1, micro_batches);
  }

  static toy::parameters<double> layer_weights(int number, double crowding) {
    toy::parameters<double> made(experts, hidden, 100 + static_cast<std::size_t>(number));
    if (crowding > 0 && number == 0) {
      for (std::size_t e = 0; e < experts; ++e) made.router[e * hidden] = e == 0 ? 4 : e == 1 ? 2 : 0;
    }
    return made;
  }
  static std::vector<double> all_inputs(double crowding) {
    auto x = toy::some_numbers<double>(micro_batches * all_rows * hidden, 7);
    for (std::size_t row = 0; crowding > 0 && row < micro_batches * all_rows; ++row) x[row * hidden] = crowding;
    return x;
  }
  static std::vector<double> all_grads() { return toy::some_numbers<double>(micro_batches * all_rows * hidden, 8); }
  // A micro-batch's rows are divided among the expert ranks.
  static std::vector<double> own(const std::vector<double>& all, int expert) {
    std::vector<double> out;
    for (std::size_t m = 0; m < micro_batches; ++m) {
      const auto first = static_cast<std::ptrdiff_t>((m * all_rows + static_cast<std::size_t>(expert) * rows) * hidden);
      out.insert(out.end(), all.begin() + first, all.begin() + first + static_cast<std::ptrdiff_t>(rows * hidden));
    }
    return out;
  }

  belay::step_outcome train() {
    std::fill(weights.router_gradient.begin(), weights.router_gradient.end(), 0.0);
    std::fill(weights.matrices_gradient.begin(), weights.matrices_gradient.end(), 0.0);
    belay::step step{engine};
    exchange.begin_step();
    pipeline.run(step, stage);
    step.observe({0, 0, 0, exchange.take_overflow().rows_wanted()});
    return std::move(step).commit(belay::world_vote{mesh.control()});
  }

  /// Distance of this rank's expert and router gradients from those of a dense model on one rank.
  double error() {
    auto first = layer_weights(0, crowding_), second = layer_weights(1, crowding_);
    const auto x = all_inputs(crowding_), g = all_grads();
    for (std::size_t m = 0; m < micro_batches; ++m) {
      const auto cut = [&](const std::vector<double>& all) {
        const auto size = static_cast<std::ptrdiff_t>(all_rows * hidden), begin = static_cast<std::ptrdiff_t>(m) * size;
        return std::vector<double>(all.begin() + begin, all.begin() + begin + size);
      };
      const toy::dense<double> seen(first, k, 0, cut(x), std::vector<double>(all_rows * hidden));
      const toy::dense<double> upper(second, k, balance_scale, seen.y, cut(g));
      const toy::dense<double> lower(first, k, balance_scale, cut(x), upper.dx);
    }
    const auto& expected = mesh.coordinate().pipeline == 0 ? first : second;
    mesh.expert().all_reduce(std::span<double>(weights.router_gradient), belay::sum);
    mesh.expert().all_reduce(std::span<double>(weights.matrices_gradient), belay::sum);  // elsewhere they are 0
    double worst = 0;
    for (std::size_t i = 0; i < expected.router_gradient.size(); ++i) {
      worst = std::max(worst, std::abs(expected.router_gradient[i] - weights.router_gradient[i]));
    }
    for (std::size_t i = 0; i < expected.matrices_gradient.size(); ++i) {
      worst = std::max(worst, std::abs(expected.matrices_gradient[i] - weights.matrices_gradient[i]));
    }
    return worst;
  }
  double crowding_ = 0;  // what the router's weights and inputs were made with
};

constexpr std::size_t room_for_all = all_rows * k;

}  // namespace

TEST_CASE("fifty clean steps leave the symmetric arena, all leases and all obligations where they were") {
  belay::host::world{4}.run([](belay::host::rank& rank) {
    counted_rank<every_backward> here(rank, room_for_all, 0);
    std::size_t extent = 0, peak = 0;
    for (int number = 0; number < 50; ++number) {
      auto outcome = here.train();
      CHECK(belay::committed(outcome) != nullptr);
      CHECK(here.heap.live_slots() == 0);
      CHECK(here.meter.live_bytes() == 0);
      CHECK(here.engine.obligations().open_count() == 0);
      if (number == 0) {
        extent = here.heap.extent_bytes();
        peak = here.meter.peak_bytes();
      }
    }
    CHECK(here.heap.extent_bytes() == extent);
    CHECK(here.meter.peak_bytes() == peak);
    CHECK(here.error() < 1e-12);
  });
}

TEST_CASE("fifty evaluations between two steps are flat and owe nothing") {
  belay::host::world{4}.run([](belay::host::rank& rank) {
    counted_rank<every_backward> here(rank, room_for_all, 0);
    auto before = here.train();
    CHECK(belay::committed(before) != nullptr);
    const std::size_t peak = here.meter.peak_bytes();
    for (int number = 0; number < 50; ++number) {
      belay::step step{here.engine};
      {
        const auto seen = belay::observe(step, here.layer, here.stage.part(here.inputs, 0));
        CHECK(here.heap.live_slots() == 0);
        CHECK(std::isfinite(seen.out()(0, 0, 0)));
      }
      CHECK(here.meter.live_bytes() == 0);
      CHECK(here.engine.obligations().open_count() == 0);
      auto outcome = std::move(step).commit();
      CHECK(belay::committed(outcome) != nullptr);
    }
    CHECK_FALSE(here.exchange.take_overflow().happened());
    CHECK(here.meter.peak_bytes() == peak);
    auto after = here.train();
    CHECK(belay::committed(after) != nullptr);
    CHECK(here.error() < 1e-12);
  });
}

TEST_CASE("a micro-batch whose backward is forgotten is named, or refused with its memory reclaimed") {
  const auto body = [](belay::host::rank& rank) {
    counted_rank<one_forgotten> here(rank, room_for_all, 0);
    std::size_t extent = 0, peak = 0;
    for (int number = 0; number < 50; ++number) {
      auto outcome = here.train();  // a checked build throws here
      CHECK(belay::committed(outcome) == nullptr);
      const auto* no = belay::refused(outcome);
      REQUIRE(no != nullptr);
      // The activation and its tokens, on both expert ranks of the second stage.
      CHECK(no->findings.open_obligations == 4);
      here.exchange.begin_step();
      CHECK(here.meter.live_bytes() == 0);
      if (number == 0) {
        extent = here.heap.extent_bytes();
        peak = here.meter.peak_bytes();
      }
    }
    CHECK(here.heap.extent_bytes() == extent);
    CHECK(here.meter.peak_bytes() == peak);
    CHECK(here.error() > 1e-3);  // and what it computed was wrong
  };
  if constexpr (belay::checked(belay::check_level::local)) {
    std::string said;
    try {
      belay::host::world{4}.run(body);
    } catch (const belay::open_obligations& open) {
      said = open.what();
    }
    const std::string line = "moe_symmetric_memory.cpp:" + std::to_string(stage_type<one_forgotten>::opening_line);
    CHECK(said.find("saved activation of layer 0 'moe.1' (micro-batch 2, 1x6x8") != std::string::npos);
    CHECK(said.find("combined tokens of layer 0 'moe.1' (micro-batch 2, 6x8") != std::string::npos);
    CHECK(said.find(line) != std::string::npos);
    CHECK(said.find("backward was never called") != std::string::npos);
    CHECK(said.find("micro-batch 1") == std::string::npos);
  } else {
    belay::host::world{4}.run(body);
  }
}

TEST_CASE("slots that belong to nobody fill the symmetric arena unless the next step reclaims them") {
  belay::host::world{1}.run([](belay::host::rank& rank) {
    belay::tier_meter meter;
    belay::symmetric_heap<group> heap(rank.world(), {1 << 16, 256, &meter});
    exchange_type exchange(rank.world(), heap, {experts, k, hidden, rows * k});
    toy::parameters<double> weights(experts, hidden, 1);
    toy::layer<double, exchange_type> layer{weights, exchange, k};
    engine_type engine{belay::host_pages(1 << 20), meter};
    const auto x = toy::some_numbers<double>(rows * hidden, 7);
    const auto lose_one = [&] {
      const belay::invocation call;
      belay::invocation_memory memory;
      {
        belay::frame<engine_type> frame{engine, call, belay::frame_mode::owing, memory};
        const auto lost = layer.forward(frame, view<const double, 2>{x.data(), {rows, hidden}});
        static_cast<void>(lost.out);
      }
      engine.activations().release(memory.kept);
      engine.activations().release(memory.remembered);
      engine.obligations().clear();
      static_cast<void>(exchange.take_overflow());
    };
    const auto fifty = [&](auto between) {
      for (int number = 0; number < 50; ++number) {
        lose_one();
        between();
      }
    };
    fifty([&] { exchange.begin_step(); });
    CHECK(meter.live_bytes() == 0);
    CHECK_THROWS_AS(fifty([] {}), belay::budget_error);
  });
}

TEST_CASE("a router that sends every token to one expert is reported and replayed, and nothing is lost") {
  belay::host::world{4}.run([](belay::host::rank& rank) {
    counted_rank<every_backward> here(rank, 5, 30);
    here.crowding_ = 30;
    int replays = 0;
    for (;;) {
      auto outcome = here.train();
      CHECK(here.meter.live_bytes() == 0);
      const auto* more = belay::replay(outcome);
      if (more == nullptr) {
        CHECK(belay::committed(outcome) != nullptr);
        break;
      }
      REQUIRE(++replays < 10);
      CHECK(more->needed_rows > here.exchange.shape().capacity);
      here.exchange.set_capacity(static_cast<std::size_t>(more->needed_rows));
    }
    CHECK(replays > 0);
    CHECK(here.exchange.shape().capacity == all_rows * k);  // both choices of every token live on one rank
    CHECK(here.error() < 1e-12);
  });
}

TEST_CASE("an overflow that nobody turns into a vote would commit wrong gradients") {
  belay::host::world{4}.run([](belay::host::rank& rank) {
    counted_rank<every_backward> here(rank, 5, 30);
    here.crowding_ = 30;
    belay::step step{here.engine};
    here.exchange.begin_step();
    here.pipeline.run(step, here.stage);
    auto outcome = std::move(step).commit(belay::world_vote{here.mesh.control()});
    CHECK(belay::committed(outcome) != nullptr);  // the commit was not told
    CHECK(here.error() > 1e-3);
    if constexpr (belay::checked(belay::check_level::local)) {
      CHECK_THROWS_AS(here.exchange.begin_step(), belay::usage_error);
    }
    const auto overflow = here.exchange.take_overflow();
    if (here.mesh.coordinate().pipeline == 0) CHECK(overflow.happened());
  });
}
