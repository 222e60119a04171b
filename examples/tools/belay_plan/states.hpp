// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Parameters, gradients and optimizer state of one rank by the formula of its ZeRO stage, in the types that Belay's
// store has and in those of the paper (ZeRO, Rajbhandari et al.), and what the store needs beside them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "belay/core/dtype.hpp"
#include "tools/belay_plan/architecture.hpp"
#include "tools/belay_plan/setting.hpp"

namespace belay_plan {

/// The least that is reduced and gathered together: the embedding, a layer, the head. Of one rank's part of the model.
struct parameter_block {
  count dense = 0;    // divided over the ranks of a shard group, which are dp where none is said, times ep
  count experts = 0;  // divided over those of a shard group
  count largest = 0;  // of one parameter; the experts of a rank are stacked

  [[nodiscard]] count all() const noexcept { return dense + experts; }
};

/// The parameters of stage `stage` of the cut. Where the head uses the table of tokens, the ranks of the first and of
/// the last stage have it.
[[nodiscard]] inline std::vector<parameter_block> blocks_of_stage(const architecture& model, const setting& run,
                                                                  count stage) {
  std::vector<parameter_block> all;
  const laid_schedule& laid = run.laid();
  const count table = model.vocabulary * model.hidden;
  const auto [first, size] = layers_of_stage(model.layers, laid.stages(), stage);
  if (stage == 0) all.push_back({embedding_parameters(model), 0, table});
  for (count layer = first; layer < first + size; ++layer) {
    const feed_forward_part& part = model.feed_forward(layer);
    const count local = part.experts / run.expert_ranks();
    const count joined = part.matrices - 1;  // gate and up are one matrix
    const count widest = part.experts == 0 ? part.width : std::max(part.shared_width, local * part.width);
    all.push_back({dense_parameters(model, layer), local * expert_parameters(model),
                   std::max(model.attention.largest, joined * model.hidden * widest)});
  }
  if (stage + 1 == laid.stages()) {
    const bool own = model.head == head_kind::own || laid.rank_of(0) != laid.rank_of(stage);
    all.push_back({model.norm_parameters + (own ? table : 0), 0, own ? table : model.norm_parameters});
  }
  return all;
}

/// The parameters of a rank, along pp.
[[nodiscard]] inline std::vector<parameter_block> blocks_of(const architecture& model, const setting& run, count rank) {
  std::vector<parameter_block> all;
  const laid_schedule& laid = run.laid();
  for (std::size_t chunk = 0; chunk < laid.chunks(); ++chunk)
    for (const parameter_block& each : blocks_of_stage(model, run, laid.stage(rank, chunk))) all.push_back(each);
  return all;
}

/// Bytes a parameter has of each kind of state.
struct state_types {
  count values = 0, gradients = 0, optimizer = 0;

  [[nodiscard]] constexpr count all() const noexcept { return values + gradients + optimizer; }
};
/// Gradients and moments are fp32; with bf16 values the optimizer has a master copy.
[[nodiscard]] constexpr state_types store_types(belay::dtype of) noexcept {
  return of == belay::dtype::bf16 ? state_types{2, 4, 12} : state_types{4, 4, 8};
}
/// fp16 values and gradients; an fp32 copy and two moments.
inline constexpr state_types paper_types{2, 2, 12};

/// Bytes of one rank.
struct state_bytes {
  count values = 0, gradients = 0, optimizer = 0;

  [[nodiscard]] constexpr count all() const noexcept { return values + gradients + optimizer; }
};

/// Of `blocks`, in `types`: what a stage divides is divided evenly.
[[nodiscard]] inline state_bytes states_of(const std::vector<parameter_block>& blocks, const setting& run,
                                           const state_types& types) noexcept {
  count dense = 0, experts = 0;
  for (const parameter_block& each : blocks) {
    dense += each.dense;
    experts += each.experts;
  }
  const auto part = [](count whole, count ranks) { return (whole + ranks - 1) / ranks; };
  const count whole = dense + experts;
  const count shard = part(dense, run.shards() * run.expert_ranks()) + part(experts, run.shards());
  return {types.values * (run.zero >= 3 ? shard : whole), types.gradients * (run.zero >= 2 ? shard : whole),
          types.optimizer * (run.zero >= 1 ? shard : whole)};
}

/// Of gradients, beside the states: one bucket that is filled, with those of its layer where gradients are divided, one
/// that is reduced meanwhile, and 64 KiB for cuts and alignment. A bucket has at least its largest parameter.
[[nodiscard]] inline count bucket_bytes_of(const std::vector<parameter_block>& blocks, const setting& run) noexcept {
  const count bytes = store_types(run.dtype).gradients;
  count bucket = run.bucket_bytes, layer = 0;
  for (const parameter_block& each : blocks) {
    bucket = std::max(bucket, each.largest * bytes);
    layer = std::max(layer, each.all() * bytes);
  }
  return (run.zero >= 2 ? std::max(layer, bucket) : bucket) + bucket + (count{64} << 10U);
}

/// Of parameters that ranks divide: the layer that is computed with is whole, and the one that comes next; or all are,
/// to the end of the step.
[[nodiscard]] inline count gathered_bytes_of(const std::vector<parameter_block>& blocks, const setting& run) noexcept {
  if (run.zero < 3) return 0;
  count most = 0, all = 0;
  for (const parameter_block& each : blocks) all += each.all();
  if (run.gathers == gathers_kind::step) return all * run.value_bytes();
  for (std::size_t i = 0; i < blocks.size(); ++i)
    most = std::max(most, blocks[i].all() + (i + 1 < blocks.size() ? blocks[i + 1].all() : 0));
  return most * run.value_bytes();
}

}  // namespace belay_plan
