// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Two matrices that are cut over a tensor axis, the first by rows and the second by columns: what they train is what
// one rank trains.
#include <doctest/doctest.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/parallel/redistribute.hpp"
#include "belay/step.hpp"
#include "belay/train.hpp"
#include "unit/train/support/network.hpp"

using network_bench::data;
using network_bench::matrix;

namespace {

using belay::axes;
using belay::axis;

// Rows of the first matrix and columns of the second are this rank's; inputs, outputs and the scale are whole.
template <class Group>
struct divided_layer {
  Group along;
  belay::parameter<float, belay::shard<0, axis::tensor>> first;   // [hidden, in]
  belay::parameter<float, belay::shard<1, axis::tensor>> second;  // [out, hidden]
  belay::parameter<float> scale;                                  // [out]
  struct residue {
    belay::view<float, 2> out, sum, hidden;
    matrix x;
  };

  template <class Mesh>
  divided_layer(const Mesh& mesh, std::size_t hidden)
      : along(mesh.tensor()),
        first({"first", {hidden, network_bench::columns}, belay::initial::normal(0.4)}, mesh),
        second({"second", {network_bench::outputs, hidden}, belay::initial::normal(0.4)}, mesh),
        scale({"scale", {network_bench::outputs}, belay::initial::constant(1)}) {}
  void for_each_parameter(auto&& visit) { visit(first), visit(second), visit(scale); }

  residue forward(auto& frame, matrix x) {
    const std::size_t rows = x.extent(0);
    auto hidden = belay::keep<float>(frame, {rows, first.extent(0)});
    auto sum = belay::keep<float>(frame, {rows, second.extent(0)});
    auto y = belay::keep<float>(frame, {rows, second.extent(0)});
    frame.product(hidden, x, belay::transposed(frame.read(first)));
    frame.product(sum, hidden, belay::transposed(frame.read(second)));
    belay::frame_all_reduce(frame, along, sum.flat(), belay::sum);
    const belay::view<const float, 1> s = frame.read(scale);
    frame.run([=] {
      for (std::size_t i = 0; i < y.extent(0); ++i)
        for (std::size_t o = 0; o < y.extent(1); ++o) y(i, o) = s(o) * sum(i, o);
    });
    return {y, sum, hidden, x};
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) {
    auto dsum = belay::scratch<float>(frame, {r.sum.extent(0), r.sum.extent(1)});
    auto dhidden = belay::scratch<float>(frame, {r.hidden.extent(0), r.hidden.extent(1)});
    const belay::view<const float, 1> s = frame.read(scale);
    const belay::view<float, 1> ds = frame.add_to(scale);
    frame.run([=, sum = r.sum] {
      for (std::size_t i = 0; i < dy.extent(0); ++i)
        for (std::size_t o = 0; o < dy.extent(1); ++o) {
          dsum(i, o) = s(o) * dy(i, o);
          ds(o) += sum(i, o) * dy(i, o);
        }
    });
    frame.product(dhidden, dsum, frame.read(second));
    frame.product(frame.add_to(second), belay::transposed(dsum), r.hidden);
    frame.product(frame.add_to(first), belay::transposed(dhidden), r.x);
    frame.product(dx, dhidden, frame.read(first));
    belay::frame_all_reduce(frame, along, dx.flat(), belay::sum);
  }
};

template <class Group>
struct divided_network {
  divided_layer<Group> divided;
  network_bench::linear last{{"last", {network_bench::outputs, network_bench::outputs}}};

  template <class Mesh>
  divided_network(const Mesh& mesh, std::size_t hidden) : divided(mesh, hidden) {}
  void for_each_parameter(auto&& visit) { divided.for_each_parameter(visit), visit(last.weight); }
};

constexpr std::size_t global_micro_batches = 6;

struct result {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<float>> values;
  bool copies_agree = true;
};

struct settings {
  axes shape;
  belay::zero_stage stage = belay::zero_stage::optimizer_state;
  std::size_t hidden = 7;
  belay::stream_choice streams = {};
};

result train(const settings& with) {
  result out;
  std::mutex lock;
  const auto body = [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, with.shape};
    using group_type = typename decltype(mesh)::group_type;
    divided_network<group_type> net(mesh, with.hidden);
    using store_type = belay::parameter_store<std::remove_reference_t<decltype(run)>>;
    store_type store{run, mesh, net, with.stage, {.seed = 3, .bucket_bytes = 64}};
    belay::adamw optimizer{store};
    const auto mine = belay::even_part(global_micro_batches, static_cast<std::size_t>(with.shape.data),
                                       static_cast<std::size_t>(int(mesh.coordinate().data)));
    std::vector<std::unique_ptr<data>> batches;
    for (auto number : run.steps(3)) {
      belay::step step{run.engine(), store};
      step.micro_batches(mine.count);
      batches.clear();
      for (std::size_t m = 0; m < mine.count; ++m) {
        const auto scope = step.micro_batch(m);
        const data& batch = *batches.emplace_back(std::make_unique<data>(number, mine.first + m));
        auto h = belay::forward(scope, net.divided, belay::constant(batch.inputs()));
        auto y = belay::forward(scope, net.last, h.out());
        auto [loss, grad] = belay::squared_error(scope, y.out(), batch.targets());
        grad = std::move(y).backward(grad);
        std::move(h).backward(grad);
      }
      auto outcome = std::move(step).commit(mesh, belay::samples{global_micro_batches * network_bench::rows});
      auto* const ok = belay::committed(outcome);
      if (ok == nullptr) continue;
      run.report(*ok, [&](const belay::step_summary& end) {
        out.losses.push_back(end.mean_loss());
        out.norms.push_back(end.norm);
      });
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-2, .clip = 0.1});
    }
    run.engine().compute().synchronize();
    if (run.rehearsing()) return;
    const std::lock_guard held(lock);
    net.for_each_parameter([&](auto& parameter) {
      std::vector<float>& whole = out.values[parameter.name()];
      whole.resize(parameter.global_size());
      parameter.each_held([&](std::size_t first, auto values) {
        for (std::size_t i = 0; i < values.size(); ++i) {
          if (whole[first + i] != 0 && whole[first + i] != values[i]) out.copies_agree = false;
          whole[first + i] = values[i];
        }
      });
    });
  };
  belay::launch(belay::host::world{static_cast<int>(with.shape.ranks())}, body, {.streams = with.streams});
  return out;
}

void check_alike(const result& one, const result& found) {
  REQUIRE(found.losses.size() == 3);
  for (std::size_t step = 0; step < 3; ++step) {
    CHECK(found.losses[step] == doctest::Approx(one.losses[step]).epsilon(1e-6));
    CHECK(found.norms[step] == doctest::Approx(one.norms[step]).epsilon(1e-5));
  }
  for (const auto& [name, values] : one.values) {
    REQUIRE(found.values.at(name).size() == values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      CHECK(found.values.at(name)[i] == doctest::Approx(values[i]).epsilon(1e-4));
  }
  CHECK(found.copies_agree);
}

}  // namespace

TEST_CASE("matrices cut over a tensor axis train as whole ones do, beside any data axis and ZeRO stage") {
  using belay::zero_stage;
  const result one = train({});
  for (const axes& shape : {axes{.tensor = 2}, {.tensor = 3}, {.data = 2, .tensor = 2}, {.data = 3, .tensor = 2}})
    for (const zero_stage stage : {zero_stage::none, zero_stage::optimizer_state, zero_stage::gradients}) {
      INFO(shape.text() << ", stage " << static_cast<int>(stage));
      check_alike(one, train({shape, stage}));
    }
}

TEST_CASE("copies that begin with other values, and other lists, are named on all ranks of the axis") {
  const auto heard = [](float of_rank_1) {
    std::vector<std::string> out(2);
    const auto body = [&](auto& rank, auto& run) {
      belay::mesh mesh{rank, {.tensor = 2}};
      divided_layer<typename decltype(mesh)::group_type> net(mesh, 4);
      belay::parameter_store store{run, mesh, net, belay::zero<0>{}};
      if (run.rehearsing()) return;
      if (rank.number() == 1) net.scale.fill([&](std::size_t, std::span<float> all) { all[1] = of_rank_1; });
      try {
        belay::step step{run.engine(), store};
        step.micro_batches(1);
        step.cut_off();
      } catch (const belay::usage_error& problem) {
        out[static_cast<std::size_t>(rank.number())] = problem.what();
      }
    };
    belay::launch(belay::host::world{2}, body);
    return out;
  };
  CHECK(heard(1) == std::vector<std::string>(2));
  for (const std::string& each : heard(7))
    CHECK(each.find("rank 0 and rank 1 along the tensor axis begin with different values of parameter scale") !=
          std::string::npos);
}

TEST_CASE("with fewer rows than ranks, where some parts are empty, and with one") {
  for (const std::size_t hidden : {1U, 2U}) {
    const result one = train({{}, belay::zero_stage::none, hidden});
    check_alike(one, train({{.tensor = 3}, belay::zero_stage::optimizer_state, hidden}));
  }
}

TEST_CASE("the sums are in the order of the streams, however late these are") {
  const settings at_once{{.data = 2, .tensor = 2}};
  const result expected = train(at_once);
  for (const belay::stream_choice streams : {belay::stream_choice{belay::stream_policy::queued, 0},
                                             {belay::stream_policy::adversarial, 0},
                                             {belay::stream_policy::adversarial, 5}}) {
    settings late = at_once;
    late.streams = streams;
    const result found = train(late);
    CHECK(found.losses == expected.losses);
    CHECK(found.values == expected.values);
  }
}
