// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A trainer whose world is a device that its ranks share, over a device of the host: it has the bits that it has over
// a world of the host, in every order of the device's streams.
#include <doctest/doctest.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/loss.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/store.hpp"
#include "fakes/cuda/fake_api.hpp"

namespace {

using matrix = belay::view<const float, 2>;
constexpr std::size_t rows = 4, width = 6, hidden = 9, steps = 3;

struct batch_of {
  float* x;
  std::size_t number;
  BELAY_HD void operator()(std::size_t i) const {
    x[i] = 0.125F * static_cast<float>((i * (number % 5 + 1) + number) % 13) - 0.75F;
  }
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

template <class T>
struct bent {
  belay::parameter<T> weight;
  std::size_t out;

  bent(const char* name, std::size_t from, std::size_t to) : weight(name, {from, to}), out(to) {}
  void for_each_parameter(auto&& visit) { visit(weight); }

  struct residue {
    belay::view<float, 2> out;
    matrix x;
    belay::view<float, 2> z;
  };
  residue forward(auto& frame, matrix x) const {
    const residue r{belay::keep<float>(frame, {x.extent(0), out}), x, belay::keep<float>(frame, {x.extent(0), out})};
    const auto w = frame.read(weight);
    frame.product(r.z, x, belay::view<const T, 2>{w.data(), {x.extent(1), out}});
    frame.each(r.z.size(), curve{r.z.data(), r.out.data()});
    return r;
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) {
    const auto w = frame.read(weight);
    auto dz = belay::scratch<float>(frame, dy.shape());
    frame.each(dy.size(), slope{r.z.data(), dy.data(), dz.data()});
    frame.product(frame.add_to(weight), belay::transposed(r.x), dz);
    frame.product(dx, dz, belay::transposed(belay::view<const T, 2>{w.data(), {r.x.extent(1), out}}));
  }
};
template <class T>
struct network {
  bent<T> first{"first", width, hidden}, last{"last", hidden, width};
  void for_each_parameter(auto&& visit) { visit(first.weight), visit(last.weight); }
};

struct result {
  std::vector<double> losses, norms;
  bool operator==(const result&) const = default;
};

template <int Stage, class T>
auto body(result& out) {
  return [&out](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    network<T> net;
    belay::parameter_store store{
        run, mesh, net, belay::zero<Stage>{}, belay::precision<T>{}, {.seed = 3, .bucket_bytes = 128}};
    belay::gathers first{net.first, store}, last{net.last, store};
    belay::adamw optimizer{store};
    const std::span<float> memory = run.template lease<float>(belay::tier::device, 4 * rows * width, "batches");
    for (auto number : run.steps(steps)) {
      belay::step step{run.engine(), store};
      step.micro_batches(2);
      for (std::size_t m = 0; m < 2; ++m) {
        const auto scope = step.micro_batch(m);
        float* const x = memory.data() + m * 2 * rows * width;
        run.engine().kit().each(2 * rows * width,
                                batch_of{x, 7 * number + 2 * static_cast<std::size_t>(rank.number()) + m});
        auto h = belay::forward(scope, first, belay::constant(matrix{x, {rows, width}}));
        auto y = belay::forward(scope, last, h.out());
        auto [loss, grad] = belay::squared_error(scope, matrix(y.out()), matrix{x + rows * width, {rows, width}});
        std::move(h).backward(std::move(y).backward(grad));
      }
      auto outcome = std::move(step).commit(mesh, belay::samples{2 * rows * static_cast<std::size_t>(rank.size())});
      auto* const ok = belay::committed(outcome);
      if (ok == nullptr) continue;
      run.report(*ok, [&](const belay::step_summary& end) {
        out.losses.push_back(end.mean_loss());
        out.norms.push_back(end.norm);
      });
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-2, .clip = 0.5});
    }
  };
}

template <int Stage, class T>
result on_host(int ranks) {
  result out;
  belay::launch<belay::host_kit<belay::kernel::blocked_products>>(belay::host::world(ranks), body<Stage, T>(out));
  return out;
}
template <int Stage, class T>
result on_device(int ranks, const fakes::device_options& how) {
  fakes::device_api api(how);
  result out;
  belay::launch(belay::cuda::world(api, belay::host::world(ranks), {.slot_bytes = 512}), body<Stage, T>(out));
  CHECK(api.empty());
  return out;
}

template <int Stage, class T = float>
void check_stage() {
  using fakes::work_order;
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const result expected = on_host<Stage, T>(ranks);
    REQUIRE(expected.losses.size() == steps);
    CHECK(expected.losses[2] < expected.losses[0]);
    for (const fakes::device_options& how : {fakes::device_options{work_order::eager},
                                             {work_order::late},
                                             {work_order::random, 1},
                                             {work_order::random, 2}})
      CHECK(on_device<Stage, T>(ranks, how) == expected);
  }
}

}  // namespace

TEST_CASE("what all ranks of a device lease is held against what it has left") {
  fakes::device_api api({.memory = (3 << 16) + 20'000});
  result out;
  std::string refused;
  try {
    belay::launch(belay::cuda::world(api, belay::host::world(3), {.slot_bytes = 512, .groups = 2}),
                  body<0, float>(out));
  } catch (const belay::plan_refused& problem) {
    refused = problem.what();
  }
  CHECK(refused.find("the 3 ranks of this device need") != std::string::npos);
  CHECK(refused.find("workspace of products") != std::string::npos);
  CHECK(out.losses.empty());
  CHECK(api.empty());
}
TEST_CASE("a trainer over a device has the bits of the host: whole state on each rank") { check_stage<0>(); }
TEST_CASE("a trainer over a device has the bits of the host: divided optimizer state") { check_stage<1>(); }
TEST_CASE("a trainer over a device has the bits of the host: divided gradients") { check_stage<2>(); }
TEST_CASE("a trainer over a device has the bits of the host: divided parameters") { check_stage<3>(); }
TEST_CASE("a trainer over a device has the bits of the host: gradients that are rounded for the wire") {
  check_stage<1, belay::bf16>();
}
