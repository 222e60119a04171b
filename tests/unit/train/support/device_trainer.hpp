// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A data-parallel trainer whose batches are made by kernels, so that any world runs it: of the host, of a device that
// is the host's, and of a GPU.
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
#include "belay/train/checkpoint.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/loss.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/parameter_files.hpp"
#include "belay/train/phase_residency.hpp"
#include "belay/train/store.hpp"

namespace device_trainer {

using matrix = belay::view<const float, 2>;
inline constexpr std::size_t rows = 4, width = 6, steps = 3;

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
  bent<T> first, last;
  explicit network(std::size_t hidden) : first("first", width, hidden), last("last", hidden, width) {}
  void for_each_parameter(auto&& visit) { visit(first.weight), visit(last.weight); }
};

struct result {
  std::vector<double> losses, norms;
  std::vector<std::size_t> live = {};  // bytes of the device at the end of each step
  bool gathers_alone = false;          // by addresses, where parameters are divided
  std::function<void()> step_ended = [] {};
  std::vector<float> weights = {};  // of the last layer
  std::uint64_t from = 0;           // the step that it went on after
  bool as_planned = true;           // of every tier as much was leased at most
  bool operator==(const result& other) const { return losses == other.losses && norms == other.norms; }
};

/// The optimizer: AdamW, or a kernel of the trainer's own through `store.update`.
enum class updated { by_adamw, by_own_kernel };
struct own_descent {
  float* value;
  const float* gradient;
  float rate;
  BELAY_HD void operator()(std::size_t i) const { value[i] -= rate * gradient[i]; }
};

/// How it trains, and where what it trains lies.
struct settings {
  belay::zero_stage stage = belay::zero_stage::none;
  std::size_t steps = device_trainer::steps;
  std::size_t hidden = 9;
  std::string checkpoints = {};            // a folder; empty: none are written
  std::string imports = {}, exports = {};  // folders of weights; empty: none
  belay::optimizer_memory optimizer = {};
  belay::tier activations = belay::tier::device;
  belay::tier between_steps = belay::tier::device;  // where gradients and state go to and come from
  belay::store_options store = {.seed = 3, .bucket_bytes = 128};
  updated how_updated = updated::by_adamw;
  std::function<void(int rank, std::vector<float>)> last_layer = {};  // what each rank has of it at the end
};

// Functions of their own (docs/howto/check_backwards.md, an error that comes and goes).
void pass(const auto& scope, auto& first, auto& last, float* x) {
  auto h = belay::forward(scope, first, belay::constant(matrix{x, {rows, width}}));
  auto y = belay::forward(scope, last, h.out());
  h.let_go();
  auto [loss, grad] = belay::squared_error(scope, matrix(y.out()), matrix{x + rows * width, {rows, width}});
  std::move(h).backward(std::move(y).backward(grad));
}
void apply_or_update(const settings& how, auto& ok, auto& store, auto& optimizer) {
  if (how.how_updated == updated::by_adamw)
    optimizer.apply(ok.part(store), {.learning_rate = 1e-2, .clip = 0.5});
  else
    store.update(ok.part(store), [rate = 0.5F / static_cast<float>(how.hidden)](
                                     auto& frame, const std::string&, std::span<float> values,
                                     std::span<const float> gradients, std::size_t) {
      const auto copy = belay::scratch<float>(frame, {values.size()});
      frame.each(values.size(), belay::kernel::copy<float>{gradients.data(), copy.data()});
      frame.each(values.size(), own_descent{values.data(), copy.data(), rate});
    });
}

template <class T>
auto trained(result& out, const settings& how) {
  return [&out, how](auto& rank, auto& run) {
    using run_type = std::remove_reference_t<decltype(run)>;
    belay::mesh mesh{rank, {.data = rank.size()}};
    network<T> net(how.hidden);
    belay::parameter_store<run_type, belay::precision<T>> store{run, mesh, net, how.stage, how.store};
    if (rank.number() == 0) out.gathers_alone = store.gathers_alone();
    belay::gathers first_whole{net.first, store}, last_whole{net.last, store};
    belay::offloaded_activations activations{run, how.activations, how.store.files};
    belay::offloads first{first_whole, activations}, last{last_whole, activations};
    belay::adamw optimizer{store, {}, how.optimizer};
    belay::checkpoints saved{run, mesh, {.folder = how.checkpoints, .every = 1, .ring_bytes = std::size_t{1} << 20}};
    saved.add(store, optimizer);
    if (!how.imports.empty()) belay::import_parameters(mesh, net, how.imports);
    const belay::resumed_run from = saved.open(belay::resume_from::newest);
    belay::phase_residency residency{run, {.lower = how.between_steps, .files = how.store.files}, store};
    const std::span<float> memory = run.template lease<float>(belay::tier::device, 4 * rows * width, "batches");
    for (auto number : run.steps(how.steps, from.step)) {
      belay::step step{run.engine(), store, saved};
      step.micro_batches(2);
      for (std::size_t m = 0; m < 2; ++m) {
        const auto scope = step.micro_batch(m);
        float* const x = memory.data() + m * 2 * rows * width;
        run.engine().kit().each(2 * rows * width,
                                batch_of{x, 7 * number + 2 * static_cast<std::size_t>(rank.number()) + m});
        pass(scope, first, last, x);
      }
      auto outcome = std::move(step).commit(mesh, belay::samples{2 * rows * static_cast<std::size_t>(rank.size())});
      auto* const ok = belay::committed(outcome);
      if (ok == nullptr) continue;
      run.report(*ok, [&](const belay::step_summary& end) {
        out.losses.push_back(end.mean_loss());
        out.norms.push_back(end.norm);
        out.live.push_back(run.meters()[belay::tier::device].live_bytes());
        out.step_ended();
      });
      apply_or_update(how, *ok, store, optimizer);
      static_cast<void>(saved.after(number));
      if (how.between_steps == belay::tier::device) continue;
      run.engine().synchronize();
      static_cast<void>(residency.offload());
      static_cast<void>(residency.restore());
    }
    saved.close();
    if (!how.exports.empty()) belay::export_parameters(mesh, net, how.exports);
    const auto weights = store.read(net.last.weight);
    if (run.rehearsing()) return;
    if (how.last_layer) {
      const std::span<const T> own = weights.values();
      how.last_layer(rank.number(), std::vector<float>(own.begin(), own.end()));
    }
    if (rank.number() != 0) return;
    for (const belay::tier in : {belay::tier::device, belay::tier::pinned, belay::tier::host, belay::tier::file})
      out.as_planned = out.as_planned && run.meters()[in].peak_bytes() == run.planned().peak_bytes(in);
    out.from = from.step;
    for (const T each : weights.values()) out.weights.push_back(static_cast<float>(each));
  };
}
template <int Stage, class T>
auto body(result& out) {
  return trained<T>(out, {.stage = static_cast<belay::zero_stage>(Stage)});
}

}  // namespace device_trainer
