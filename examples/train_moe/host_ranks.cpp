// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which trainer a run asks for, of those that this program was built with.
#include "train_moe/host_ranks.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "belay/backend/cuda/communication_memory.hpp"
#include "belay/backend/nccl/communication_memory.hpp"
#include "train_moe/missing_trainer.hpp"

namespace train_moe {

namespace {

// As BELAY_TRAINERS has them, with commas.
constexpr std::string_view built_trainers = BELAY_TRAIN_MOE_TRAINERS;

constexpr bool is_built(std::string_view name) {
  for (std::string_view rest = built_trainers; !rest.empty();) {
    const std::size_t end = rest.find(',');
    if (rest.substr(0, end) == name) return true;
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  }
  return false;
}

[[noreturn]] void say_missing(const std::string& flag, std::string_view name) {
  std::string built(built_trainers);
  std::replace(built.begin(), built.end(), ',', ';');
  throw missing_trainer(flag, std::string(name), built);
}

// The world that will run gives the same, but is made where the plan fits, and where there are devices.
belay::estimated_communication communication_of(const command_line& line, const belay::rehearsal_result& planned) {
  const int ranks = static_cast<int>(line.run.mesh.ranks());
  switch (computes_on_of(line)) {
    case belay::computes_on::host: return {};
    case belay::computes_on::device:
      return {belay::cuda::communication_memory{}.bytes_of_rank(ranks, planned.calls), belay::shared_communication_row};
    case belay::computes_on::own_device:
      return {belay::nccl::world_options{}.bytes_of_rank(ranks, planned.meshes, planned.calls,
                                                         belay::nccl::sums::fixed_order)};
  }
  return {};
}

}  // namespace

void run_rank(prepared_run& prepared, belay::rank& rank, belay::run& run) {
  const options& chosen = prepared.line.run;
  if (chosen.dtype == belay::dtype::bf16) {
    if constexpr (is_built("bf16")) return run_rank_bf16(prepared, rank, run);
    say_missing("--dtype bf16", "bf16");
  }
  switch (chosen.freeze) {
    case freeze_kind::none:
      if constexpr (is_built("fp32")) return run_rank_fp32(prepared, rank, run);
      say_missing("--dtype fp32", "fp32");
    case freeze_kind::attention:
      if constexpr (is_built("frozen_attention")) return run_rank_frozen_attention(prepared, rank, run);
      say_missing("--freeze attention", "frozen_attention");
    case freeze_kind::experts:
      if constexpr (is_built("frozen_experts")) return run_rank_frozen_experts(prepared, rank, run);
      say_missing("--freeze experts", "frozen_experts");
    case freeze_kind::parts:
      if constexpr (is_built("frozen_parts")) return run_rank_frozen_parts(prepared, rank, run);
      say_missing("--freeze attention,experts,embedding", "frozen_parts");
  }
}

belay::rehearsal_result rehearsed(prepared_run& rest) {
  const auto body = [&](belay::rank& rank, belay::run& run) { run_rank(rest, rank, run); };
  belay::rehearsal_result out = belay::rehearse(static_cast<int>(rest.line.run.mesh.ranks()), body,
                                                computes_on_of(rest.line), launch_options_of(rest.line.run));
  out.communication = communication_of(rest.line, out);
  return out;
}

}  // namespace train_moe
