// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Bytes of one rank of each pipeline stage, by tier and purpose, from formulas alone.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "belay/device/tier.hpp"
#include "tools/belay_plan/activations.hpp"
#include "tools/belay_plan/architecture.hpp"
#include "tools/belay_plan/setting.hpp"
#include "tools/belay_plan/states.hpp"

namespace belay_plan {

enum class purpose : std::uint8_t {
  parameters,
  gradients,
  optimizer,
  buckets,
  gathered,
  activations,
  windows,
  ring,
  batch
};
inline constexpr std::size_t purpose_count = 9;

/// As the plan of train_moe calls it.
[[nodiscard]] constexpr const char* name(purpose of) noexcept {
  switch (of) {
    case purpose::parameters: return "parameters";
    case purpose::gradients: return "gradients";
    case purpose::optimizer: return "optimizer state";
    case purpose::buckets: return "gradient buckets";
    case purpose::gathered: return "gathered parameters";
    case purpose::activations: return "activations";
    case purpose::windows: return "expert windows";
    case purpose::ring: return "optimizer ring";
    case purpose::batch: return "batch";
  }
  return "unknown";
}
/// States and the batch are what the formula says; the rest follows from an order of events that it simplifies.
[[nodiscard]] constexpr bool is_estimate(purpose of) noexcept {
  return of == purpose::activations || of == purpose::windows || of == purpose::gathered || of == purpose::ring;
}

/// Bytes of one rank.
struct stage_memory {
  std::array<std::array<count, purpose_count>, belay::tier_count> bytes{};

  [[nodiscard]] count& at(belay::tier in, purpose of) noexcept {
    return bytes[static_cast<std::size_t>(in)][static_cast<std::size_t>(of)];
  }
  [[nodiscard]] count at(belay::tier in, purpose of) const noexcept {
    return bytes[static_cast<std::size_t>(in)][static_cast<std::size_t>(of)];
  }
  [[nodiscard]] count total(belay::tier in) const noexcept {
    count all = 0;
    for (const count each : bytes[static_cast<std::size_t>(in)]) all += each;
    return all;
  }
};

/// Bytes are whole, and a number that no machine has stays one.
[[nodiscard]] inline count whole_bytes(double bytes) noexcept {
  return bytes >= 4e18 ? count{4'000'000'000'000'000'000} : static_cast<count>(bytes);
}

/// Bytes of activations: of one micro-batch in a stage, and beside those in flight.
class activation_bytes {
 public:
  activation_bytes(const architecture& model, const setting& run)
      : model_(&model), laid_(&run.laid()), formula_(model, run) {}

  /// Kept on the device from a stage's forward to its backward, in two halves to the second one: the gradient of a
  /// layer's output is then in the place of what the first half gave back.
  [[nodiscard]] double kept(std::size_t stage) const {
    double all = formula_.boundary();
    for_layers(stage, [&](count layer) { all += formula_.kept(layer); });
    return all + logits(stage);
  }
  /// In the lower tier that has activations: the input of every layer, and what it keeps.
  [[nodiscard]] double away(std::size_t stage) const {
    double all = 0;
    for_layers(stage, [&](count layer) { all += formula_.kept(layer) + formula_.boundary(); });
    return all;
  }
  [[nodiscard]] double windows(std::size_t stage) const {
    double all = 0;
    for_layers(stage, [&](count layer) { all += formula_.windows_kept(layer); });
    return all;
  }
  /// The head's logits, which its backward makes a gradient of.
  [[nodiscard]] double logits(std::size_t stage) const { return is_last(stage) ? formula_.head_kept() : 0; }

  /// A tensor that has come while the rank computes, before its forward.
  [[nodiscard]] double received(std::size_t rank) const { return rank > 0 ? formula_.boundary() : 0; }

  /// Bytes of a rank while a backward runs, beside those in flight. One that is whole has given back the logits before
  /// those of layers.
  [[nodiscard]] double beside(std::size_t rank) const {
    double layers = 0, head = 0;
    for_chunks(rank, [&](std::size_t stage) {
      double most = 0;
      for_layers(stage, [&](count layer) { most = std::max(most, formula_.backward(layer)); });
      if (is_last(stage)) {
        head = formula_.head_backward();
        if (!laid_->splits_backwards()) most = std::max(most - formula_.head_kept(), 0.0);
      }
      layers = std::max(layers, most);
    });
    return std::max(layers, head);
  }
  [[nodiscard]] double windows_beside(std::size_t rank) const {
    double most = 0;
    for_chunks(rank, [&](std::size_t stage) {
      for_layers(stage, [&](count layer) { most = std::max(most, formula_.windows_of_backward(layer)); });
    });
    return most;
  }
  /// Of two layers, which are on the device while a lower tier has the others.
  [[nodiscard]] double two_layers(std::size_t rank) const {
    double most = 0;
    for_chunks(rank, [&](std::size_t stage) {
      for_layers(stage, [&](count layer) { most = std::max(most, formula_.kept(layer)); });
    });
    return 2 * most + 2 * formula_.boundary();
  }

 private:
  [[nodiscard]] bool is_last(std::size_t stage) const { return stage + 1 == laid_->stages(); }
  template <class Use>
  void for_layers(std::size_t stage, const Use& use) const {
    const auto [first, size] = layers_of_stage(model_->layers, laid_->stages(), stage);
    for (count layer = first; layer < first + size; ++layer) use(layer);
  }
  template <class Use>
  void for_chunks(std::size_t rank, const Use& use) const {
    for (std::size_t chunk = 0; chunk < laid_->chunks(); ++chunk) use(laid_->stage(rank, chunk));
  }

  const architecture* model_;
  const laid_schedule* laid_;
  activation_formula formula_;
};

/// The memory that a rank along pp keeps, and where.
inline void add_activations(stage_memory& out, const architecture& model, const setting& run, count rank) {
  const activation_bytes bytes(model, run);
  const laid_schedule& laid = run.laid();
  const bool away = run.offload.activations != belay::tier::device;
  const auto on_device = [&](std::size_t stage) { return away ? bytes.logits(stage) : bytes.kept(stage); };
  const double here =
      (away ? bytes.two_layers(rank) : 0) + laid.most(rank, on_device) + bytes.received(rank) + bytes.beside(rank);
  out.at(belay::tier::device, purpose::activations) += whole_bytes(here);
  out.at(belay::tier::device, purpose::windows) += whole_bytes(
      laid.most(rank, [&](std::size_t stage) { return bytes.windows(stage); }) + bytes.windows_beside(rank));
  if (away)
    out.at(run.offload.activations, purpose::activations) +=
        whole_bytes(laid.most(rank, [&](std::size_t stage) { return bytes.away(stage); }));
}

/// A rank along pp.
[[nodiscard]] inline stage_memory memory_of(const architecture& model, const setting& run, count rank) {
  using belay::tier;
  stage_memory out;
  const std::vector<parameter_block> blocks = blocks_of(model, run, rank);
  const state_bytes states = states_of(blocks, run, store_types(run.dtype));
  out.at(run.offload.parameters, purpose::parameters) += states.values;
  out.at(run.offload.gradients, purpose::gradients) += states.gradients;
  out.at(run.offload.optimizer, purpose::optimizer) += states.optimizer;
  out.at(tier::device, purpose::buckets) += bucket_bytes_of(blocks, run);
  out.at(tier::device, purpose::gathered) += gathered_bytes_of(blocks, run);
  add_activations(out, model, run, rank);
  if (run.offload.optimizer != tier::device) {
    // Three slots of a chunk's gradients and values.
    const tier in = run.offload.optimizer == tier::file ? tier::host : run.offload.optimizer;
    out.at(in, purpose::ring) += 3 * (count{1} << 18U) * (4 + run.value_bytes());
  }
  out.at(tier::host, purpose::batch) += 2 * 4 * run.rows() * run.micro_batches();
  return out;
}

}  // namespace belay_plan
