// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A small network trained by an engine over a device of the host, whose streams are late on purpose, and by the host.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/kernel.hpp"
#include "belay/step.hpp"
#include "unit/backend/fake_cuda.hpp"

using namespace fake_cuda;
using fakes::work_order;

namespace {

using matrix = belay::view<const float, 2>;
constexpr std::size_t rows = 6, width = 8, hidden = 12, steps = 3;

// y = z + z^2 / 8, where z = x w. Both are kept.
struct bent {
  float *weight, *gradient;
  std::size_t in, out;

  struct residue {
    belay::view<float, 2> out;
    matrix x;
    belay::view<float, 2> z;
  };
  struct curve {
    const float* z;
    float* y;
    BELAY_HD void operator()(std::size_t i) const { y[i] = z[i] + z[i] * z[i] / 8; }
  };
  struct slope {
    const float *z, *dy;
    float* dz;
    BELAY_HD void operator()(std::size_t i) const { dz[i] = dy[i] * (1 + z[i] / 4); }
  };

  [[nodiscard]] static const char* name() { return "bent"; }
  residue forward(auto& frame, matrix x) const {
    const residue r{belay::keep<float>(frame, {x.extent(0), out}), x, belay::keep<float>(frame, {x.extent(0), out})};
    frame.product(r.z, x, matrix{weight, {in, out}});
    frame.each(r.z.size(), curve{r.z.data(), r.out.data()});
    return r;
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) const {
    auto dz = belay::scratch<float>(frame, dy.shape());
    frame.each(dy.size(), slope{r.z.data(), dy.data(), dz.data()});
    frame.product(belay::adding_to(belay::view<float, 2>{gradient, {in, out}}), belay::transposed(r.x), dz);
    frame.product(dx, dz, belay::transposed(matrix{weight, {in, out}}));
  }
};

// The gradient of half the squared error.
struct difference {
  const float *y, *target;
  float* dy;
  BELAY_HD void operator()(std::size_t i) const { dy[i] = y[i] - target[i]; }
};
struct squared_error {
  const float* dy;
  std::size_t count;
  belay::kernel::findings_note found;
  BELAY_HD void operator()(std::size_t) const {
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += static_cast<double>(dy[i]) * static_cast<double>(dy[i]) / 2;
    found.add_loss(sum);
  }
};

enum class forgets { nothing, batch, result };

// Trains with numbers in `memory`, of which `staged` is the host's side: of each layer weight, gradient and moments,
// then the batch and its targets. Gives the losses and the weights. Calls `step_ended` after each step.
template <class Engine, class Memory, class Staged, class Ended>
std::vector<double> train(Engine& engine, const Memory& memory, const Staged& staged, forgets what, Ended step_ended) {
  const auto at = [](const auto& region, std::size_t k) { return reinterpret_cast<float*>(region.data()) + 128 * k; };
  constexpr std::size_t size = width * hidden, floats = 128;
  bent one{at(memory, 0), at(memory, 1), width, hidden}, two{at(memory, 4), at(memory, 5), hidden, width};
  auto& compute = engine.compute();
  for (std::size_t i = 0; i < 8 * floats; ++i)
    at(staged, 0)[i] = i % 512 < floats ? 0.0625F * static_cast<float>(i % 19) - 0.5F : 0;
  belay::queue_copy(compute, memory.data(), staged.data(), 8 * floats * sizeof(float));
  compute.synchronize();
  std::vector<double> out;
  for (std::size_t s = 1; s <= steps; ++s) {
    belay::step step{engine};
    for (std::size_t i = 0; i < 2 * floats; ++i)
      at(staged, 8)[i] = 0.125F * static_cast<float>((i * (s % 2 + 1) + s % 2) % 13) - 0.75F;
    engine.copies().copy(at(memory, 8), at(staged, 8), 2 * floats * sizeof(float));
    if (const auto copied = engine.copies().record(); what != forgets::batch) engine.copies().let_wait(compute, copied);
    auto first = belay::forward(step, one, belay::constant(matrix{at(memory, 8), {rows, width}}));
    auto second = belay::forward(step, two, first.out());
    belay::gradient<Engine, float, 2> dy{engine, {rows, width}};
    engine.kit().each(rows * width, difference{second.out().data(), at(memory, 9), dy.values().data()});
    engine.kit().each(1, squared_error{dy.values().data(), rows * width, {engine.found(), {}}});
    dy = std::move(second).backward(dy);
    std::move(first).backward(dy);
    const auto outcome = std::move(step).commit([&](const belay::ballot& own) {
      out.push_back(own.loss);
      return own;
    });
    static_cast<void>(outcome);
    for (std::size_t k : {0U, 4U}) {
      engine.kit().each(
          size, belay::kernel::adamw<float>{at(memory, k), at(memory, k + 1), at(memory, k + 2), at(memory, k + 3),
                                            belay::kernel::adamw_at_step<float>({.learning_rate = 0.02}, s)});
      engine.kit().each(size, belay::kernel::fill<float>{at(memory, k + 1), 0});
    }
    step_ended();
  }
  if (const auto updated = compute.record(); what != forgets::result) engine.copies().wait(updated);
  engine.copies().copy(staged.data(), memory.data(), 8 * floats * sizeof(float));
  engine.copies().synchronize();
  for (std::size_t k : {0U, 4U}) out.insert(out.end(), at(staged, k), at(staged, k) + size);
  compute.synchronize();
  return out;
}

std::vector<double> on_host() {
  belay::tier_meter meter;
  belay::host_engine engine(belay::host_pages(1 << 14), meter);
  const belay::host_pages memory(1 << 13), staged(1 << 13);
  return train(engine, memory, staged, forgets::nothing, [] {});
}

using device_engine = belay::engine<memory_type, kit_type>;

template <class Ended>
std::vector<double> on_device(api_type& api, forgets what, belay::freed_memory freed, Ended step_ended) {
  const belay::cuda::device<api_type> gpu(api);
  const memory_type memory(gpu, 1 << 13);
  const host_side staged(gpu, 1 << 13);
  belay::tier_meter meter;
  device_engine engine(memory_type(gpu, 1 << 14), meter, kit_type(gpu), freed);
  return train(engine, memory, staged, what, step_ended);
}
std::vector<double> on_device(const fakes::device_options& how, forgets what) {
  api_type api(how);
  return on_device(api, what, belay::freed_memory::poisoned, [] {});
}

}  // namespace

TEST_CASE("an engine over a device trains to the host's bits in every order, and a missing event is seen") {
  const std::vector<double> expected = on_host();
  CHECK(expected[0] > expected[steps - 1]);
  for (const forgets what : {forgets::batch, forgets::result}) {
    CHECK(on_device({work_order::eager}, what) == expected);
    CHECK(on_device({work_order::late}, what) != expected);
  }
  std::size_t without_batch = 0;
  for (const fakes::device_options& how : orders()) {
    CHECK(on_device(how, forgets::nothing) == expected);
    without_batch += on_device(how, forgets::batch) != expected;
  }
  CHECK(without_batch > 1);
}

TEST_CASE("steps after the first ask a device for nothing") {
  api_type api({work_order::late});
  std::vector<std::size_t> ended;
  static_cast<void>(
      on_device(api, forgets::nothing, belay::freed_memory::as_it_was, [&] { ended.push_back(api.calls().size()); }));
  CHECK(api.empty());
  for (const char* call : {"allocate", "register_host", "make_stream", "make_event"})
    CHECK(std::count(api.calls().begin() + static_cast<std::ptrdiff_t>(ended.front()),
                     api.calls().begin() + static_cast<std::ptrdiff_t>(ended.back()), call) == 0);
}

TEST_CASE("a step in which a call of the device fails is an error that names it, and nothing is left") {
  api_type all({work_order::late});
  std::size_t end = 0;
  static_cast<void>(
      on_device(all, forgets::nothing, belay::freed_memory::as_it_was, [&] { end = all.calls().size(); }));
  const std::vector<std::string> calls(all.calls().begin(), all.calls().begin() + static_cast<std::ptrdiff_t>(end));
  for (const std::string& name : std::set<std::string>(calls.begin(), calls.end())) {
    CAPTURE(name);
    std::size_t k = calls.size();  // the last such call of the steps
    while (calls[k - 1] != name) --k;
    api_type api({work_order::late, 0, k});
    try {
      static_cast<void>(on_device(api, forgets::nothing, belay::freed_memory::as_it_was, [] {}));
      FAIL_CHECK("nothing failed");
    } catch (const belay::backend_error& problem) {
      CHECK(problem.about().call == name);
    }
    CHECK(api.empty());
  }
}
