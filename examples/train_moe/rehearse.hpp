// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The plan of a run: every rank's machine is built over addresses without memory, and runs one training step and one
// evaluation step. The run will lease what they leased, to the byte.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "belay/comm/rehearsal.hpp"
#include "belay/parallel/bucket.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/plan.hpp"
#include "train_moe/forward_only.hpp"
#include "train_moe/machine.hpp"
#include "train_moe/options.hpp"
#include "train_moe/parameters.hpp"
#include "train_moe/report_table.hpp"

namespace train_moe {

/// The result of planning one rank: its plan, and the capacities of the two regions of its steps.
struct rank_rehearsal {
  belay::rank_plan plan;
  step_memory memory;
};

/// Plans one rank with room for `capacity_rows` rows a dispatch.
template <class T>
[[nodiscard]] rank_rehearsal rehearse(const options& run, int rank, std::size_t capacity_rows) {
  using rank_type = belay::rehearsal::rank;
  constexpr std::size_t address_space = std::size_t{1} << 36;  // a sanitizer refuses much more
  rank_type self{rank, static_cast<int>(run.mesh.ranks())};
  belay::tier_meter device;
  machine<T, rank_type, belay::rehearsal_engine> rehearsal{
      run, self, device, {address_space, address_space}, capacity_rows};
  auto& engine = rehearsal.engine();
  const auto& shape = rehearsal.shape();
  const belay::reserved_addresses batch_addresses{batch_bytes(run)};
  auto* const addresses = reinterpret_cast<std::int32_t*>(batch_addresses.data());
  const belay::view<std::int32_t, 3> no_tokens{addresses, {shape.micro_batches, shape.sequences, shape.length}};
  rehearsal.stage().set_batch({no_tokens, no_tokens});
  {
    belay::step step{engine};
    rehearsal.run_pipeline(step);
    static_cast<void>(rehearsal.exchange().take_overflow());
    static_cast<void>(std::move(step).commit());
  }
  const std::size_t peak = device.peak_bytes();
  const std::size_t window_peak = rehearsal.windows().peak_bytes();
  {
    belay::step step{engine};
    const belay::view<const std::int32_t, 2> tokens{addresses,
                                                    {rehearsal.evaluation_sequences_of_rank(), run.sequence}};
    forward_only<T>(rehearsal, step, tokens, [](auto) {});
    static_cast<void>(std::move(step).commit());
  }
  rank_rehearsal found;
  found.memory = {engine.activations().offsets().extent_bytes(), rehearsal.windows().extent_bytes()};

  auto members = bucket_members<T>(rehearsal.model());
  const auto families = family_shapes(run);
  const belay::norm_table norm = make_norm_table<T>(run);
  const belay::bucket_layout layout = belay::layout_of<T>(members, families, run.bucket_bytes, norm.unit());
  const auto ranks = ranks_in_families(rehearsal.mesh());
  const std::size_t parameter_bytes = belay::leased_size(layout.elements() * sizeof(T));
  const std::size_t gradient_bytes = belay::leased_size(layout.gradient_elements() * sizeof(T));
  const std::size_t state_bytes = belay::leased_size(belay::adamw_state_elements(layout, ranks) * sizeof(T));
  using belay::tier;
  found.plan.add(tier::device, "parameters", parameter_bytes);
  found.plan.add(tier::device, "gradients", gradient_bytes);
  found.plan.add(tier::device, "optimizer state", state_bytes);
  found.plan.add(tier::device, "activations", peak - window_peak, found.memory.activations);
  found.plan.add(tier::device, "expert windows", window_peak, found.memory.windows);
  found.plan.add(tier::host, "batch", 2 * batch_bytes(run));
  found.plan.add(tier::host, "gradient norm", belay::leased_size(norm.bytes()));
  found.plan.add(tier::host, "report", belay::leased_size(report_table(run).size() * sizeof(double)));
  return found;
}

/// The plan of a whole run.
struct run_plan {
  belay::plan ranks;
  std::vector<step_memory> memory;  // by rank
  std::size_t capacity_rows = 0;    // a dispatch has room for
};

template <class T>
[[nodiscard]] run_plan rehearse_all(const options& run, std::size_t capacity_rows) {
  std::vector<belay::rank_plan> ranks;
  run_plan out;
  for (int rank = 0; rank < static_cast<int>(run.mesh.ranks()); ++rank) {
    auto found = rehearse<T>(run, rank, capacity_rows);
    ranks.push_back(std::move(found.plan));
    out.memory.push_back(found.memory);
  }
  out.ranks = belay::plan(std::move(ranks));
  out.capacity_rows = capacity_rows;
  return out;
}

}  // namespace train_moe
