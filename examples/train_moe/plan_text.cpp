// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/plan_text.hpp"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "belay/train/plan_table.hpp"

namespace train_moe {

namespace {

// What would need less memory in a tier, given what the run already does.
std::vector<std::string> advice(belay::tier of, const options& run) {
  std::vector<std::string> out;
  if (of == belay::tier::host)
    return {"a smaller --micro-batches, --micro-batch-size or --sequence: the host tier holds the step's batch"};
  if (run.recompute == recompute_kind::none)
    out.emplace_back("--recompute full: activations keep only the layers' outputs");
  if (run.schedule == schedule_kind::gpipe && run.mesh.pipeline > 1)
    out.emplace_back("--schedule 1f1b: fewer micro-batches are in flight");
  if (run.zero == belay::zero_stage::none && run.mesh.data * run.mesh.expert > 1)
    out.emplace_back("--zero 1: the optimizer's state is divided");
  if (run.expert_capacity > 1)
    out.emplace_back("--expert-capacity 1: smaller expert windows, at the price of replayed steps");
  if (run.micro_batch_size > static_cast<std::size_t>(run.mesh.expert)) {
    out.emplace_back("--micro-batch-size " + std::to_string(run.mesh.expert) +
                     " with more --micro-batches: smaller activations");
  }
  out.emplace_back("more ranks on --mesh pp or ep: each holds less of the model");
  return out;
}

std::string table_text(const belay::plan& plan, const options& run, const std::vector<std::string>& suggestions) {
  const auto tiers = {belay::tier::device, belay::tier::host};
  std::vector<std::string> purposes;
  std::vector<std::vector<std::uint64_t>> bytes;
  std::vector<std::string_view> tier_names;
  std::vector<belay::plan_budget> budgets;
  for (belay::tier of : tiers) {
    for (const std::string& purpose : plan.purposes(of)) {
      std::vector<std::uint64_t> row;
      for (const belay::rank_plan& rank : plan.ranks()) {
        std::uint64_t total = 0;
        for (const belay::plan_item& item : rank.items())
          total += item.where_it_is == of && item.purpose == purpose ? item.bytes : 0;
        row.push_back(total);
      }
      purposes.push_back(purpose);
      bytes.push_back(std::move(row));
      tier_names.emplace_back(belay::name(of));
    }
    if (run.budget[of] != belay::unlimited_bytes) budgets.push_back({belay::name(of), run.budget[of]});
  }
  std::vector<belay::plan_row> rows;
  for (std::size_t i = 0; i < purposes.size(); ++i) rows.push_back({tier_names[i], purposes[i], bytes[i]});
  const std::vector<std::string_view> hints(suggestions.begin(), suggestions.end());
  std::string out = belay::plan_printer({rows, budgets, hints}).text();
  std::size_t gaps = 0;
  for (const belay::rank_plan& rank : plan.ranks()) {
    gaps = std::max(gaps, rank.capacity_bytes(belay::tier::device) - rank.peak_bytes(belay::tier::device));
  }
  out += "gaps between leases add at most " + std::to_string(gaps) + " bytes of arena to a rank's device tier\n";
  return out;
}

}  // namespace

std::string plan_text(const belay::plan& plan, const options& run) { return table_text(plan, run, {}); }

void refuse(const belay::plan& plan, const belay::plan_shortage& shortage, const options& run) {
  throw belay::plan_refused(table_text(plan, run, advice(shortage.where_it_is, run)), shortage, belay::where{});
}

}  // namespace train_moe
