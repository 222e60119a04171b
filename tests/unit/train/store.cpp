// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/train/store.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "unit/train/support/messages.hpp"
#include "unit/train/support/network.hpp"

using namespace network_bench;

namespace {

template <int Stage>
trained train(int ranks, std::size_t steps = 5, double clip = 1e30) {
  trained out;
  belay::launch(belay::host::world{ranks}, training_body<Stage>(steps, out, clip));
  return out;
}

}  // namespace

TEST_CASE("a store trains: the loss falls, and dividing the optimizer's state changes no bit") {
  const trained one = train<0>(1, 30);
  CHECK(one.losses.back() < one.losses.front() / 4);
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    const trained whole = train<0>(ranks), divided = train<1>(ranks);
    CHECK(whole.losses == divided.losses);
    CHECK(whole.norms == divided.norms);
    CHECK(whole.values == divided.values);
    REQUIRE(whole.values.size() == one.values.size());
    for (std::size_t i = 0; i < 5; ++i) CHECK(whole.losses[i] == doctest::Approx(one.losses[i]).epsilon(1e-5));
  }
}

TEST_CASE("clipping scales by the norm of all gradients") {
  const trained free = train<1>(2, 3), clipped = train<1>(2, 3, 1e-3);
  CHECK(free.norms.front() == clipped.norms.front());
  CHECK(free.norms.front() > 1e-3);
  CHECK(free.values != clipped.values);
}

TEST_CASE("a limit or a rate that makes no sense is refused before anything is updated") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  for (const double clip : {nan, 0.0, -1.0, -infinity}) {
    CAPTURE(clip);
    CHECK_THROWS_WITH_AS(train<1>(2, 1, clip), doctest::Contains("the limit is above 0, and infinity is none"),
                         belay::usage_error);
  }
  CHECK(train<1>(2, 1, infinity).losses.size() == 1);
  for (const double rate : {nan, infinity, -infinity, -1e-3}) {
    CAPTURE(rate);
    CHECK_THROWS_WITH_AS(belay::check_update({.learning_rate = rate}, belay::where::current()),
                         doctest::Contains("it is a number from 0 on"), belay::usage_error);
  }
  belay::check_update({.learning_rate = 0}, belay::where::current());
}

TEST_CASE("what a run leases at its peak is its plan, to the byte, and a second step leases nothing more") {
  for (const int ranks : {1, 3}) {
    trained out;
    const auto body = training_body<1>(4, out);
    const belay::rehearsal_result planned = belay::rehearse(ranks, body);
    std::vector<std::size_t> device(static_cast<std::size_t>(ranks)), host(device);
    belay::launch(belay::host::world{ranks}, [&](auto& rank, auto& run) {
      body(rank, run);
      if (!run.rehearsing()) {
        const auto number = static_cast<std::size_t>(rank.number());
        device[number] = run.meters()[belay::tier::device].peak_bytes();
        host[number] = run.meters()[belay::tier::host].peak_bytes();
      }
    });
    for (std::size_t r = 0; r < device.size(); ++r) {
      CHECK(device[r] == planned.plan.ranks()[r].peak_bytes(belay::tier::device));
      CHECK(host[r] == planned.plan.ranks()[r].peak_bytes(belay::tier::host));
    }
    CHECK(contains(planned.text(), "optimizer state"));
  }
}

TEST_CASE("a run that does not fit is refused before a body runs on a rank") {
  trained out;
  const auto body = training_body<0>(1, out);
  belay::launch_options options;
  options.budget[belay::tier::device] = 1000;
  try {
    belay::launch(belay::host::world{2}, body, options);
    FAIL("it was not refused");
  } catch (const belay::plan_refused& refused) {
    CHECK(contains(refused.what(), "parameters"));
    CHECK(contains(refused.what(), "short by"));
  }
  options.budget = {};
  options.available = 5000;  // each rank fits, both do not
  try {
    belay::launch(belay::host::world{2}, body, options);
    FAIL("it was not refused");
  } catch (const belay::plan_refused& refused) {
    CHECK(contains(refused.what(), "the 2 ranks of this machine need"));
    CHECK(contains(refused.what(), "5000"));
  }
  CHECK(out.losses.empty());
}

namespace {

// A participant whose room overflows until it is given more: it leases what it has room for from symmetric memory.
template <class Heap>
struct overflowing final : belay::participant {
  Heap* heap;
  std::size_t room = 2, used = 0, began = 0;
  explicit overflowing(Heap* of) : heap(of) {}
  void begin(const belay::step_start&, belay::where) override { ++began, used = 0; }
  void use(std::size_t rows) {
    const auto slot = heap->lease(room * 64, "rows");
    used = rows;
    heap->release(slot);
  }
  [[nodiscard]] belay::ballot findings() override {
    belay::ballot found;
    found.needed_rows = used > room ? used : 0;
    return found;
  }
  [[nodiscard]] std::uint64_t fingerprint() const override { return room; }
  void make_room(std::size_t rows, belay::where) override { room = rows; }
};

}  // namespace

TEST_CASE("a step that overflows comes again with the same number, and with room, in the objects that it had") {
  std::vector<std::size_t> numbers;
  const auto said = messages([&numbers](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = 2}};
    network net;
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
    belay::adamw optimizer{store};
    auto& heap = run.windows(mesh.world());
    overflowing<std::remove_reference_t<decltype(heap)>> participant{&heap};
    for (auto number : run.steps(3)) {
      if (!run.rehearsing() && rank.number() == 0) numbers.push_back(number);
      belay::step step{run.engine(), store, participant};
      pass(step, net, data(number, 0));
      participant.use(!run.rehearsing() && number >= 2 && rank.number() == 1 ? 50 : 1);
      auto outcome = std::move(step).commit(mesh, belay::samples{4});
      if (auto* ok = belay::committed(outcome)) optimizer.apply(std::move(*ok), {});
    }
    if (!run.rehearsing()) CHECK(participant.room == 50);
  });
  for (const std::string& one : said) CHECK(one == "");
  CHECK(numbers == std::vector<std::size_t>{1, 2, 2, 3});
}

namespace {

struct list_of_two {
  belay::parameter<float> a{"a", {5000, 3}}, b{"b", {77, 100}};
  bool has_a = true, has_b = true;
  void for_each_parameter(auto&& visit) {
    if (has_a) visit(a);
    if (has_b) visit(b);
  }
};

// The norm of a step whose gradients are the parameters' first values, where each stage has what `shards` gives it.
double norm_of_stages(int stages) {
  double found = 0;
  belay::launch(belay::host::world{stages}, [&found, stages](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.pipeline = stages}};
    list_of_two model;
    if (stages == 2) (rank.number() == 0 ? model.has_b : model.has_a) = false;
    belay::parameter_store store{run, mesh, model, belay::zero<1>{}};
    belay::adamw optimizer{store};
    for (auto number : run.steps(1)) {
      static_cast<void>(number);
      belay::step step{run.engine(), store};
      model.for_each_parameter([&](auto& parameter) {
        if (!run.rehearsing())
          std::memcpy(parameter.gradient(), parameter.value(), parameter.local_size() * sizeof(float));
        parameter.contribution()->note_written();
        parameter.contribution()->contribute(0, {}, belay::where::current());
      });
      auto outcome = std::move(step).commit(mesh, belay::samples{3});
      if (auto* ok = belay::committed(outcome)) {
        run.report(*ok, [&](const belay::step_summary& end) { found = end.norm; });
        optimizer.apply(std::move(*ok), {});
      }
    }
  });
  return found;
}

}  // namespace

TEST_CASE("the norm of a model in two pipeline stages has the bits of the norm of the whole") {
  const double whole = norm_of_stages(1);
  CHECK(whole > 1);
  CHECK(norm_of_stages(2) == whole);
}

namespace {

// A layer whose weight is written by a product, by a kernel, or by neither, as its micro-batch says.
struct chooses {
  linear inner{{"chosen", {3, 7}}};
  using residue = linear::residue;
  [[nodiscard]] static const char* name() { return "chooses"; }
  void for_each_parameter(auto&& visit) { visit(inner.weight); }

  residue forward(auto& frame, matrix x) { return inner.forward(frame, x); }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) {
    frame.each(dx.size(), belay::kernel::fill<float>{dx.data(), 0});
    const std::size_t way = (frame.micro_batch() + first) % 3;
    if (way == 0) return frame.product(frame.add_to(inner.weight), transposed(dy), r.x);
    if (way == 1) return frame.adds_nothing(inner.weight);
    const auto sum = frame.add_to(inner.weight);
    frame.run([=, out = sum.data()] {
      for (std::size_t i = 0; i < dy.extent(0); ++i)
        for (std::size_t o = 0; o < 3; ++o)
          for (std::size_t k = 0; k < 7; ++k) out[o * 7 + k] += dy(i, o) * r.x(i, k);
    });
  }
  std::size_t first = 0;
};

// The gradient after a step in which the memory held garbage before, by which of the three came first.
std::vector<float> gradient_after(std::size_t first, std::size_t micro_batches) {
  std::vector<float> out;
  belay::launch(belay::host::world{1}, [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {}};
    chooses layer;
    layer.first = first;
    belay::parameter_store store{run, mesh, layer, belay::zero<0>{}};
    for (auto number : run.steps(2)) {
      belay::step step{run.engine(), store};
      step.micro_batches(micro_batches);
      for (std::size_t m = 0; m < micro_batches; ++m) {
        const data batch(1, (m + first) % 3);
        auto y = belay::forward(step.micro_batch(m), layer, belay::constant(batch.inputs()));
        auto [loss, grad] = belay::squared_error(step, y.out(), batch.targets());
        std::move(y).backward(grad);
      }
      auto outcome = std::move(step).commit(mesh, belay::samples{1});
      auto* ok = belay::committed(outcome);
      if (ok == nullptr) continue;
      if (run.rehearsing()) {
        std::move(*ok).discard();
        continue;
      }
      float* const gradient = layer.inner.weight.gradient();
      if (number == 2) out.assign(gradient, gradient + 21);
      for (std::size_t i = 0; i < 21; ++i) gradient[i] = 1e30F;
      std::move(*ok).discard();
    }
  });
  return out;
}

}  // namespace

TEST_CASE("what adds first in a step writes, and nothing is left of the step before") {
  const std::vector<float> product_first = gradient_after(0, 3);
  REQUIRE(product_first.size() == 21);
  float largest = 0;
  for (float g : product_first) largest = std::max(largest, std::abs(g));
  CHECK(largest > 0);
  CHECK(largest < 1000);
  for (std::size_t first = 1; first < 3; ++first) {
    const std::vector<float> other = gradient_after(first, 3);
    for (std::size_t i = 0; i < 21; ++i) CHECK(other[i] == doctest::Approx(product_first[i]));
  }
  CHECK(gradient_after(1, 1) == std::vector<float>(21, 0.0F));  // nothing was added
  CHECK(gradient_after(0, 0) == std::vector<float>(21, 0.0F));  // no micro-batch
}
