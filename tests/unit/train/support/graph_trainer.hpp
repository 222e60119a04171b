// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A trainer whose steps may be captured as graphs, and which does at will what a captured step must not do; over any
// world. Each rank has a batch of its own, and rank 0 tells.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/comm.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/step.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/loss.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/step_graphs.hpp"
#include "belay/train/store.hpp"
#include "unit/train/support/device_trainer.hpp"

namespace graph_trainer {

using belay::graph_use;
using device_trainer::matrix, device_trainer::network;

inline constexpr std::size_t rows_of_batch = device_trainer::rows, width = device_trainer::width;
inline constexpr std::size_t batch_elements = 2 * rows_of_batch * width;

struct trial {
  graph_use use = graph_use::captured;
  belay::zero_stage stage = belay::zero_stage::none;
  std::size_t steps = 20;
  std::size_t overflows_in = 0;  // this step says that it needs room
  std::size_t drops_in = 0;      // before this step the trainer drops the graphs
  std::size_t loses_in = 0;      // this step's body, where it runs, forgets a backward
  belay::axes axes{};            // of the mesh; data is that of the world
  belay::tier state = belay::tier::device;
  belay::tier gradients = belay::tier::device, parameters = belay::tier::device;  // their shards
  belay::tier activations = belay::tier::device;
  std::string folder{};         // of what is in tier file
  std::size_t hidden = 9;       // of the network
  bool keeps_gradient = false;  // the body keeps memory of the step
  bool runs_late = false;       // the body comes after a forward of the step
  // Told of rank 0's calls and launches.
  belay::call_listener* told = nullptr;
};
struct record {
  std::vector<double> losses, norms;
  std::vector<std::size_t> ended;  // calls of the device so far, at the end of each step
  std::size_t bodies = 0;          // how often the body was called
  std::uint64_t launches = 0;
  [[nodiscard]] bool same_numbers(const record& other) const { return losses == other.losses && norms == other.norms; }
};

// What an exchange does when a rank gets more rows than it has room for.
struct overflow_if {
  const float* flag;
  belay::kernel::findings_note found;
  BELAY_HD void operator()() const {
    if (*flag != 0) found.need_rows(8);
  }
};
template <class Handle>
struct shelf {
  Handle handle;
};

template <class T>
auto body(const trial& what, record& out, const std::function<std::size_t()>& calls = {}) {
  return [&what, &out, calls](auto& rank, auto& run) {
    const bool rehearsing = run.rehearsing();
    belay::axes axes = what.axes;
    axes.data = rank.size() / axes.expert;
    belay::mesh mesh{rank, axes};
    network<T> net(what.hidden);
    const belay::file_memory files{.folder = what.folder};
    using run_type = std::remove_reference_t<decltype(run)>;
    belay::parameter_store<run_type, belay::precision<T>> store{
        run,
        mesh,
        net,
        what.stage,
        {.seed = 3, .bucket_bytes = 128, .parameters = what.parameters, .gradients = what.gradients, .files = files}};
    belay::gathers first_whole{net.first, store}, last_whole{net.last, store};
    belay::offloaded_activations activations{run, what.activations, files};
    belay::offloads first{first_whole, activations}, last{last_whole, activations};
    belay::adamw optimizer{store, {}, {.state = what.state, .folder = what.folder, .chunk = belay::parameter_chunk}};
    belay::step_graphs graphs{mesh, store, optimizer, what.use};
    const std::size_t elements = 2 * batch_elements + 1;
    const std::span<float> batch = run.template lease<float>(belay::tier::device, elements, "batches");
    const std::span<float> staged = run.template lease<float>(belay::tier::pinned, elements, "batches");
    if constexpr (requires(belay::call_listener& told) { run.engine().watch().tell_calls(told); })
      if (what.told != nullptr && !rehearsing && rank.number() == 0) run.engine().watch().tell_calls(*what.told);
    std::size_t tries = 0;
    const auto own = static_cast<std::size_t>(rank.number());
    const auto replicas = static_cast<std::size_t>(axes.data);
    const bool tells = !rehearsing && own == 0;
    for (auto number : run.steps(what.steps)) {
      if (number == what.drops_in) graphs.drop();
      if (!rehearsing) {
        for (std::size_t i = 0; i + 1 < elements; ++i)
          staged[i] = 0.125F * static_cast<float>((i * (number % 5 + 1) + 7 * number + 5 * own) % 13) - 0.75F;
        staged[elements - 1] = number == what.overflows_in && ++tries == 1 ? 1.0F : 0.0F;
      }
      auto& compute = run.engine().compute();
      belay::queue_copy(compute, batch.data(), staged.data(), elements * sizeof(float));
      belay::step step{run.engine(), store};
      step.micro_batches(2);
      using gradient_type = decltype(belay::squared_error(step, matrix{}, matrix{}).gradient);
      std::vector<gradient_type> kept;
      const auto micro_batch = [&](std::size_t m) {
        const auto scope = step.micro_batch(m);
        float* const x = batch.data() + m * batch_elements;
        auto h = belay::forward(scope, first, belay::constant(matrix{x, {rows_of_batch, width}}));
        auto y = belay::forward(scope, last, h.out());
        h.let_go();
        auto [loss, grad] =
            belay::squared_error(scope, matrix(y.out()), matrix{x + rows_of_batch * width, {rows_of_batch, width}});
        std::move(h).backward(std::move(y).backward(grad));
        if (what.keeps_gradient) kept.push_back(std::move(grad));
      };
      if (what.runs_late) micro_batch(0);
      graphs.run([&] {
        if (tells) ++out.bodies;
        compute.run(overflow_if{batch.data() + elements - 1, {run.engine().found(), {}}});
        for (std::size_t m = what.runs_late ? 1 : 0; m < 2; ++m) micro_batch(m);
        if (number == what.loses_in && !rehearsing) {
          auto h = belay::forward(step, first, belay::constant(matrix{batch.data(), {rows_of_batch, width}}));
          const auto lost = shelf{std::move(h).hand_over()};
        }
      });
      kept.clear();
      auto outcome = std::move(step).commit(mesh, belay::samples{2 * rows_of_batch * replicas + number % 4});
      auto* const ok = belay::committed(outcome);
      if (ok == nullptr) continue;
      run.report(*ok, [&](const belay::step_summary& end) {
        out.losses.push_back(end.mean_loss());
        out.norms.push_back(end.norm);
      });
      const double rate = 1e-2 / static_cast<double>(number);
      optimizer.apply(std::move(*ok), {.learning_rate = rate, .clip = number % 3 == 0 ? 0.25 : 1e9});
      if (calls && tells) out.ended.push_back(calls());
    }
    if (tells) out.launches = graphs.launches();
  };
}

}  // namespace graph_trainer
