// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Runs a training body on all ranks of a world, after it has rehearsed it: the body runs once over addresses without
// memory for every rank, so that every byte is known before the first is touched, and a run that does not fit is
// refused with its table.
//
//   auto train = [](auto& rank, auto& run) { ... };
//   int main() { belay::launch(belay::host::world{2}, train); }
//   const belay::rehearsal_result plan = belay::rehearse(4, train);   // of four ranks, without running them
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/comm/launcher.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/comm/rehearsal.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/available_memory.hpp"
#include "belay/device/kit.hpp"
#include "belay/device/memory.hpp"
#include "belay/device/tier.hpp"
#include "belay/step/engine.hpp"
#include "belay/train/plan.hpp"
#include "belay/train/plan_table.hpp"
#include "belay/train/run.hpp"

namespace belay::inline BELAY_ABI {

struct launch_options {
  belay::budget budget;                        // of each rank; unlimited by default
  std::size_t available = available_memory();  // of this machine, for the ranks on it
  // What would need less memory of a tier: shown with a refusal.
  std::function<std::vector<std::string>(tier)> advice;
};

/// The plan of a body on all ranks, and the regions that its run needs.
struct rehearsal_result {
  belay::plan plan;
  std::vector<run_memory> memory;  // by rank
  mesh_record meshes;              // which groups the bodies asked for: a run makes them with its meshes

  /// What each rank leases at its peak, as a table, held against the options' budgets; a last line has the bytes of
  /// address range that gaps between leases add.
  [[nodiscard]] std::string text(const launch_options& options = {}) const;
};

/// A body that runs on a real rank and on a rehearsed one: `body(rank, run)`, a generic lambda or function object.
template <class Body>
concept training_body = requires(Body& body, rehearsal::rank& rank, run<rehearsal::rank, rehearsal_engine>& run) {
  body(rank, run);
};

/// One rank of `size`, rehearsed with room for `rows` rows a dispatch (0: what the body says).
template <training_body Body>
[[nodiscard]] std::pair<rank_plan, run_memory> rehearse_rank(int number, int size, Body& body, std::uint64_t rows,
                                                             mesh_record& meshes, where at) {
  constexpr std::size_t address_space = std::size_t{1} << 36;  // a sanitizer refuses much more
  rehearsal::rank rank(number, size, at);
  run_memory everything;
  everything.activations = address_space;
  everything.persistent.fill(address_space);
  run<rehearsal::rank, rehearsal_engine> run(number, {{}, everything});
  run.engine().make_room(rows);
  body(rank, run);
  meshes.add(rank.meshes());
  return {run.plan(), run.memory()};
}

/// The plan of `body` on `size` ranks: it is run once for each over addresses without memory, and computes, sends and
/// prints nothing. Throws what the body throws.
template <training_body Body>
[[nodiscard]] rehearsal_result rehearse(int size, Body&& body, where at = where::current()) {
  rehearsal_result out;
  std::vector<rank_plan> plans;
  for (int number = 0; number < size; ++number) {
    auto [plan, memory] = rehearse_rank(number, size, body, 0, out.meshes, at);
    plans.push_back(std::move(plan));
    out.memory.push_back(std::move(memory));
  }
  out.plan = belay::plan(std::move(plans));
  return out;
}
template <class World, training_body Body>
requires requires(const World& world) { world.size(); }
[[nodiscard]] rehearsal_result rehearse(const World& world, Body&& body, where at = where::current()) {
  return rehearse(world.size(), body, at);
}

/// Throws plan_refused, with the table and what would help, where a rank's plan is over its budget, or those of this
/// machine's ranks are more than the machine has left.
inline void expect_fits(const rehearsal_result& planned, const launch_options& options, int ranks_here, where at) {
  if (const auto missing = planned.plan.shortage(options.budget))
    throw plan_refused(planned.text(options), *missing, at);
  checked_size all;
  for (int rank = 0; rank < ranks_here; ++rank) {
    const rank_plan& one = planned.plan.ranks()[static_cast<std::size_t>(rank)];
    for (std::size_t of = 0; of < tier_count; ++of)
      if (static_cast<tier>(of) != tier::file) all += one.peak_bytes(static_cast<tier>(of));
  }
  if (all.saturated() <= options.available) return;
  const plan_shortage shortage{tier::device, 0, all.saturated(), options.available};
  throw plan_refused(planned.text(options) + "the " + std::to_string(ranks_here) +
                         (ranks_here == 1 ? " rank needs " : " ranks of this machine need ") +
                         std::to_string(all.saturated()) + " bytes (" + bytes_text(all.saturated()) + "), and it has " +
                         std::to_string(options.available) + " (" + bytes_text(options.available) +
                         ") left: fewer ranks here, a smaller model or batch, belay::recompute, or belay::zero<1>\n",
                     shortage, at);
}

/// Runs `body` on every rank of `world`, with the memory of `planned`, a rehearsal of the same body on as many ranks.
/// Throws plan_refused, and what `world.run` throws: the first cause.
template <class Kit = host_kit<>, class World, training_body Body>
void launch(World&& world, Body&& body, const rehearsal_result& planned, const launch_options& options = {},
            where at = where::current()) {
  const int size = world.size();
  if (planned.memory.size() != static_cast<std::size_t>(size))
    throw usage_error(
        "a plan of " + std::to_string(planned.memory.size()) + " ranks for a world of " + std::to_string(size), at);
  const launcher_environment launcher = find_launcher();
  const bool launched = launcher.size == size && launcher.local_size > 0;
  expect_fits(planned, options, launched ? launcher.local_size : size, at);
  // A communication that is under way when a body is left by an exception still uses its rank's memory.
  std::vector<std::shared_ptr<void>> kept(static_cast<std::size_t>(size));
  world.run([&](auto& rank) {
    using rank_type = std::remove_reference_t<decltype(rank)>;
    const int number = rank.number();
    const auto again = [&, number](std::uint64_t rows) {
      rehearsal_result own;
      auto [plan, memory] = rehearse_rank(number, size, body, rows, own.meshes, at);
      own.plan = belay::plan({plan});
      expect_fits(own, options, 1, at);
      return planned_run{std::move(plan), std::move(memory)};
    };
    using run_type = run<rank_type, engine<host_pages, Kit>>;
    const auto mine = static_cast<std::size_t>(number);
    auto self =
        std::make_shared<run_type>(number, planned_run{planned.plan.ranks()[mine], planned.memory[mine]}, again);
    kept[mine] = self;
    if constexpr (has_mesh_record<rank_type>) rank.meshes().add(planned.meshes);
    body(rank, *self);
  });
}

/// Rehearses `body`, refuses what does not fit, and runs it on every rank of `world`: threads, processes, or this
/// process's rank where a launcher has started them. What the run leases outlives every body. Throws plan_refused, and
/// what `world.run` throws: the first cause. Layers compute with `Kit`: `launch<my_kit>(world, body)`.
template <class Kit = host_kit<>, class World, training_body Body>
void launch(World&& world, Body&& body, const launch_options& options = {}, where at = where::current()) {
  launch<Kit>(world, body, rehearse(world.size(), body, at), options, at);
}

inline std::string rehearsal_result::text(const launch_options& options) const {
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
    gaps = std::max(gaps, rank.capacity_bytes(tier::device) - rank.peak_bytes(tier::device));
  return plan_printer({rows, budgets, suggestions}).text() + "gaps between leases add at most " + std::to_string(gaps) +
         " bytes of arena to a rank's device tier\n";
}

}  // namespace belay::inline BELAY_ABI
