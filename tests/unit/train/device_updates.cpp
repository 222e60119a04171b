// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The calls of a device that a commit and an update make, however many parameters there are: launches by buckets, and
// waits of the host that do not grow. Numbers have the bits of the host.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/comm.hpp"
#include "belay/step.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/loss.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/step_graphs.hpp"
#include "belay/train/store.hpp"
#include "fakes/cuda/fake_api.hpp"
#include "unit/train/support/directory.hpp"

namespace {

using belay::tier;
using matrix = belay::view<const float, 2>;
constexpr std::size_t rows = 2, width = 3, steps = 4;

// A gradient that depends on the values, so that an update shows in the next norm.
template <class T>
struct pull {
  const T* value;
  float* gradient;
  BELAY_HD void operator()(std::size_t i) const {
    gradient[i] += 0.5F * static_cast<float>(value[i]) + 0.01F * static_cast<float>(i % 5);
  }
};

template <class T>
struct many_parameters {
  std::vector<belay::parameter<T>> all;

  // Of odd sizes, one of several chunks.
  explicit many_parameters(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      all.emplace_back(belay::parameter_spec{.name = "p" + std::to_string(i),
                                             .shape = {i == 3 ? 9001 : 5 + 3 * (i % 40)},
                                             .first_values = belay::initial::constant(0.25),
                                             .decay = i % 2 == 0 ? belay::weight_decay::yes : belay::weight_decay::no});
  }
  void for_each_parameter(auto&& visit) {
    for (auto& each : all) visit(each);
  }
  struct residue {
    belay::view<float, 2> out;
  };
  residue forward(auto& frame, matrix x) {
    const residue r{belay::keep<float>(frame, x.shape())};
    frame.each(x.size(), belay::kernel::copy<float>{x.data(), r.out.data()});
    return r;
  }
  void backward(auto& frame, residue&&, matrix dy, belay::view<float, 2> dx) {
    for (auto& each : all) frame.each(each.local_size(), pull<T>{frame.read(each).data(), frame.add_to(each).data()});
    frame.each(dy.size(), belay::kernel::copy<float>{dy.data(), dx.data()});
  }
};

struct trial {
  std::size_t parameters = 3;
  belay::store_options store = {.seed = 5, .bucket_bytes = 16 << 10};
  belay::zero_stage stage = belay::zero_stage::none;
};
struct record {
  std::vector<double> norms;
  std::size_t buckets = 0;
  std::vector<std::size_t> begun, committed, applied;  // calls of the device so far, of each step
};

template <class T>
auto body(
    const trial& what, record& out, const std::function<std::size_t()>& calls = [] { return std::size_t{0}; }) {
  return [&what, &out, calls](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    many_parameters<T> net(what.parameters);
    using run_type = std::remove_reference_t<decltype(run)>;
    belay::parameter_store<run_type, belay::precision<T>> store{run, mesh, net, what.stage, what.store};
    belay::adamw optimizer{store};
    const auto x = run.template lease<float>(tier::device, rows * width, "batch");
    const bool tells = !run.rehearsing() && rank.number() == 0;
    if (tells) out.buckets = store.buckets().layout().buckets().size();
    for (auto number : run.steps(steps)) {
      static_cast<void>(number);
      if (tells) out.begun.push_back(calls());
      belay::step step{run.engine(), store};
      auto y = belay::forward(step, net, belay::constant(matrix{x.data(), {rows, width}}));
      auto [loss, grad] = belay::squared_error(step, matrix(y.out()), matrix{x.data(), {rows, width}});
      std::move(y).backward(grad);
      if (tells) out.committed.push_back(calls());
      auto outcome = std::move(step).commit(mesh, belay::samples{7});
      auto* const ok = belay::committed(outcome);
      REQUIRE(ok != nullptr);
      run.report(*ok, [&](const belay::step_summary& end) {
        if (tells) out.norms.push_back(end.norm);
      });
      optimizer.apply(std::move(*ok), {.learning_rate = 0.05, .clip = 20});
      if (tells) out.applied.push_back(calls());
    }
  };
}
template <class T>
record on_host(const trial& what, int ranks = 1) {
  record out;
  belay::launch<belay::host_kit<>>(belay::host::world(ranks), body<T>(what, out));
  return out;
}
template <class T>
record on_device(const trial& what, fakes::device_api& api, int ranks = 1) {
  record out;
  belay::launch(belay::cuda::world(api, belay::host::world(ranks), {.slot_bytes = 512}),
                body<T>(what, out, [&] { return api.calls_so_far(); }));
  CHECK(api.empty());
  return out;
}
std::ptrdiff_t asked(const fakes::device_api& api, std::size_t from, std::size_t to, const char* name) {
  const auto at = [&](std::size_t place) { return api.calls().begin() + static_cast<std::ptrdiff_t>(place); };
  return std::count(at(from), at(to), name);
}

}  // namespace

TEST_CASE_TEMPLATE("a commit and an update launch by buckets and wait three times in a step", T, float, belay::bf16) {
  for (const std::size_t parameters : {std::size_t{3}, std::size_t{211}}) {
    CAPTURE(parameters);
    const trial what{.parameters = parameters};
    const record expected = on_host<T>(what);
    fakes::device_api api({fakes::work_order::late});
    const record here = on_device<T>(what, api);
    CHECK(here.norms == expected.norms);
    CHECK(here.norms[0] != here.norms[steps - 1]);
    const std::size_t last = steps - 1;
    CHECK(asked(api, here.committed[last], here.applied[last], "each") == 0);
    CHECK(asked(api, here.committed[last], here.applied[last], "teams") ==
          static_cast<std::ptrdiff_t>(1 + here.buckets));                      // divided and summed, and updated
    CHECK(asked(api, here.committed[last], here.applied[last], "copy") == 4);  // findings, divisor, squares, scalars
    // From update to update: before the next step, for the findings, for the squares.
    CHECK(asked(api, here.applied[last - 1], here.applied[last], "await") <= 3);
  }
}

TEST_CASE("updates over a table have the bits of the host in every order, divided and in a file") {
  const train_bench::directory folder;
  for (const belay::zero_stage stage :
       {belay::zero_stage::none, belay::zero_stage::optimizer_state, belay::zero_stage::gradients})
    for (const tier lower : {tier::device, tier::pinned, tier::file}) {
      if (lower != tier::device && stage < belay::zero_stage::gradients) continue;
      CAPTURE(static_cast<int>(stage));
      trial what{.parameters = 11, .stage = stage};
      const record expected = on_host<float>(what, 3);
      what.store.gradients = lower;
      what.store.files = {.folder = folder.path};
      for (const auto order : {fakes::work_order::late, fakes::work_order::random}) {
        fakes::device_api api({order, 1});
        CHECK(on_device<float>(what, api, 3).norms == expected.norms);
      }
    }
}

TEST_CASE("a call that fails in a division or an update over a table is what a launch throws, and nothing is left") {
  const trial what{.parameters = 5};
  fakes::device_api whole({fakes::work_order::late});
  const record out = on_device<float>(what, whole);
  for (std::size_t k = out.committed[1]; k < out.applied[1]; ++k) {
    const std::string& name = whole.calls()[k];
    if (name != "teams" && name != "copy") continue;
    CAPTURE(name);
    fakes::device_api api({fakes::work_order::late, 0, k + 1});
    record cut;
    CHECK_THROWS_WITH(belay::launch(belay::cuda::world(api, belay::host::world(1), {.slot_bytes = 512}),
                                    body<float>(what, cut, [&] { return api.calls_so_far(); })),
                      doctest::Contains("injected"));
    CHECK(api.empty());
  }
}
