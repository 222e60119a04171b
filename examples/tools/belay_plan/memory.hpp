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

/// Micro-batches that stage `stage` keeps at most.
[[nodiscard]] inline count in_flight(const setting& run, count stage) noexcept {
  return run.schedule == schedule_kind::gpipe ? run.micro_batches()
                                              : std::min(run.micro_batches(), run.stages() - stage);
}

/// Bytes are whole, and a number that no machine has stays one.
[[nodiscard]] inline count whole_bytes(double bytes) noexcept {
  return bytes >= 4e18 ? count{4'000'000'000'000'000'000} : static_cast<count>(bytes);
}

/// The memory that a stage keeps, and where. A lower tier has the activations with the input of every layer; those of
/// two layers are on the device meanwhile.
inline void add_activations(stage_memory& out, const architecture& model, const setting& run, count stage) noexcept {
  const activation_formula formula(model, run);
  const auto [first, size] = layers_of_stage(model.layers, run.stages(), stage);
  double kept = 0, most = 0, windows = 0, backward = 0, windows_of_backward = 0;
  for (count layer = first; layer < first + size; ++layer) {
    kept += formula.kept(layer);
    most = std::max(most, formula.kept(layer));
    windows += formula.windows_kept(layer);
    backward = std::max(backward, formula.backward(layer));
    windows_of_backward = std::max(windows_of_backward, formula.windows_of_backward(layer));
  }
  const auto flights = static_cast<double>(in_flight(run, stage));
  const bool away = run.offload.activations != belay::tier::device, last = stage + 1 == run.stages();
  const double here = away ? 2 * most + 2 * formula.boundary() : flights * (kept + formula.boundary());
  // The last stage's head keeps its logits until its own backward, which is the next thing unless forwards come first.
  const double logits =
      last ? formula.head_kept() * (run.schedule == schedule_kind::gpipe ? static_cast<double>(run.micro_batches()) : 1)
           : 0;
  const double after_head = logits > 0 ? logits - formula.head_kept() : 0;
  const double peak = here + std::max(after_head + backward, last ? logits + formula.head_backward() : 0);
  out.at(belay::tier::device, purpose::activations) += whole_bytes(peak);
  out.at(belay::tier::device, purpose::windows) += whole_bytes(flights * windows + windows_of_backward);
  if (away)
    out.at(run.offload.activations, purpose::activations) +=
        whole_bytes(flights * (kept + static_cast<double>(size) * formula.boundary()));
}

/// A rank of stage `stage`.
[[nodiscard]] inline stage_memory memory_of(const architecture& model, const setting& run, count stage) {
  using belay::tier;
  stage_memory out;
  const std::vector<parameter_block> blocks = blocks_of(model, run, stage);
  const state_bytes states = states_of(blocks, run, store_types(run.dtype));
  out.at(run.offload.parameters, purpose::parameters) += states.values;
  out.at(run.offload.gradients, purpose::gradients) += states.gradients;
  out.at(run.offload.optimizer, purpose::optimizer) += states.optimizer;
  out.at(tier::device, purpose::buckets) += bucket_bytes_of(blocks, run);
  out.at(tier::device, purpose::gathered) += gathered_bytes_of(blocks, run);
  add_activations(out, model, run, stage);
  if (run.offload.optimizer != tier::device) {
    // Three slots of a chunk's gradients and values.
    const tier in = run.offload.optimizer == tier::file ? tier::host : run.offload.optimizer;
    out.at(in, purpose::ring) += 3 * (count{1} << 18U) * (4 + run.value_bytes());
  }
  out.at(tier::host, purpose::batch) += 2 * 4 * run.rows() * run.micro_batches();
  return out;
}

}  // namespace belay_plan
