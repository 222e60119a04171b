// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a launch holds a plan against, and says where it does not fit.
#pragma once

#include <string_view>
#include <utility>

#include "belay/comm/launcher.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/error.hpp"
#include "belay/step/rehearsal_watch.hpp"
#include "belay/train/launch_plan.hpp"
#include "belay/train/plan_table.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL void announce_rehearsal(fault_explanation faults) {
  if (!checked(check_level::local) || faults != fault_explanation::none) return;
  try {
    if (find_launcher().rank == 0) rehearsal_watch::announce();
  } catch (const input_error&) {  // a launch throws it where it needs to know the launcher
  }
}

BELAY_DECL rehearsal_result priced(const rehearsal_result& planned, const estimated_communication& communication) {
  if (communication.bytes == 0) return planned;
  rehearsal_result out = planned;
  out.communication = {};
  std::vector<rank_plan> plans;
  for (const rank_plan& each : planned.plan.ranks()) {
    rank_plan one = each;
    one.add(tier::device, communication.row, communication.bytes);
    plans.push_back(std::move(one));
  }
  out.plan = belay::plan(std::move(plans));
  return out;
}

BELAY_DECL checked_size memory_of(const rank_plan& plan, memory_owner whose) noexcept {
  checked_size all;
  for (const plan_item& item : plan.items()) {
    const bool on_device = item.where_it_is == tier::device;
    if (whose == memory_owner::device)
      all += on_device && !std::string_view(item.purpose).starts_with(shared_communication_row) ? item.capacity : 0;
    else if (on_device ? whose == memory_owner::machine
                       : item.where_it_is != tier::file || item.of_file == file_bytes::in_memory)
      all += item.bytes;
  }
  return all;
}

BELAY_DECL void expect_room(const rehearsal_result& planned, const launch_options& options, int ranks_here,
                            memory_owner whose, std::size_t available, where at) {
  checked_size all;
  std::size_t fitting = 0;  // ranks, counted from the first
  for (int rank = 0; rank < ranks_here; ++rank) {
    all += memory_of(planned.plan.ranks()[static_cast<std::size_t>(rank)], whose);
    fitting += all.saturated() <= available ? 1 : 0;
  }
  if (all.saturated() <= available) return;
  const plan_shortage shortage{tier::device, 0, all.saturated(), available};
  throw plan_refused(planned.text(options) + "the " + std::to_string(ranks_here) +
                         (ranks_here == 1                 ? " rank needs "
                          : whose == memory_owner::device ? " ranks of this device need "
                                                          : " ranks of this machine need ") +
                         std::to_string(all.saturated()) + " bytes (" + bytes_text(all.saturated()) + "), and it has " +
                         std::to_string(available) + " (" + bytes_text(available) + ") left: room for " +
                         std::to_string(fitting) + " of such ranks. Fewer ranks here, a smaller model or batch, " +
                         "belay::recompute, or belay::zero<1>\n",
                     shortage, at);
}

BELAY_DECL void expect_devices(const rehearsal_result& planned, const launch_options& options,
                               const std::vector<std::size_t>& left, where at) {
  for (std::size_t rank = 0; rank < left.size(); ++rank) {
    const std::size_t needed = memory_of(planned.plan.ranks()[rank], memory_owner::device).saturated();
    if (needed <= left[rank]) continue;
    throw plan_refused(planned.text(options) + "rank " + std::to_string(rank) + " needs " + std::to_string(needed) +
                           " bytes (" + bytes_text(needed) + ") of its device, and that has " +
                           std::to_string(left[rank]) + " (" + bytes_text(left[rank]) +
                           ") left beside its context and communicators. A smaller model or batch, belay::recompute, " +
                           "or belay::zero<1>\n",
                       {tier::device, static_cast<int>(rank), needed, left[rank]}, at);
  }
}

BELAY_DECL void expect_fits(const rehearsal_result& planned, const launch_options& options, int ranks_here, where at,
                            const device_room& devices) {
  if (const auto missing = planned.plan.shortage(options.budget))
    throw plan_refused(planned.text(options), *missing, at);
  const bool apart = devices.whose != device_room::of::no_rank;
  const auto machine = apart ? memory_owner::machine_beside_device : memory_owner::machine;
  expect_room(planned, options, ranks_here, machine, options.available, at);
  if (devices.whose == device_room::of::all_ranks)
    expect_room(planned, options, ranks_here, memory_owner::device, devices.shared, at);
  expect_devices(planned, options, devices.by_rank, at);
}

BELAY_DECL std::string rehearsal_result::text(const launch_options& options) const {
  if (communication.bytes > 0) return priced(*this, communication).text(options);
  std::vector<std::string> purposes;
  std::vector<std::vector<std::uint64_t>> bytes;
  std::vector<std::string_view> tiers;
  std::vector<plan_budget> budgets;
  for (std::size_t number = 0; number < tier_count; ++number) {
    const tier of = static_cast<tier>(number);
    for (const std::string& purpose : plan.purposes(of)) {
      std::vector<std::uint64_t> row;
      for (const rank_plan& rank : plan.ranks()) {
        checked_size all;
        for (const plan_item& item : rank.items())
          if (item.where_it_is == of && item.purpose == purpose) all += item.bytes;
        row.push_back(all.saturated());
      }
      purposes.push_back(purpose);
      bytes.push_back(std::move(row));
      tiers.emplace_back(name(of));
    }
    if (options.budget[of] != unlimited_bytes) budgets.push_back({name(of), options.budget[of]});
  }
  std::vector<plan_row> rows;
  for (std::size_t i = 0; i < purposes.size(); ++i) rows.push_back({tiers[i], purposes[i], bytes[i]});
  std::vector<std::string> words;
  if (const auto missing = plan.shortage(options.budget); missing && options.advice)
    words = options.advice(missing->where_it_is);
  const std::vector<std::string_view> suggestions(words.begin(), words.end());
  std::size_t gaps = 0;
  for (const rank_plan& rank : plan.ranks())
    gaps = greater_of(gaps, rank.capacity_bytes(tier::device) - rank.peak_bytes(tier::device));
  std::string out = plan_printer({rows, budgets, suggestions}).text() + "gaps between leases add at most " +
                    std::to_string(gaps) + " bytes of arena to a rank's device tier\n";
  std::size_t at_once = 0;
  for (const run_memory& rank : memory) at_once = greater_of(at_once, rank.added_at_once);
  if (at_once > 0)
    out += "of a step's backwards in two halves at most " + std::to_string(at_once) +
           " on a rank add their weight gradients in the first: their layers ask for a gradient's memory\n";
  return out;
}

}  // namespace belay::inline BELAY_ABI
