// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Goes from one phase of a run to another. A phase is a value: who has `in_phase<phase::eval>` is in evaluation, and
// only by moving it does one get to the next phase. A transition ends what the phase has left, compares the plans of
// the ranks, and says what memory it found and what there is now.
//
//   belay::phase_switch phases{run, mesh, store};
//   auto training = phases.begin();
//   ...                                                      // steps
//   auto evaluating = phases.to_eval(std::move(training));
//   ...                                                      // forward-only passes
//   training = phases.to_train(std::move(evaluating));
//   const belay::transition& found = phases.last();
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/where.hpp"
#include "belay/device/available_memory.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/rank_comparison.hpp"
#include "belay/step/phase.hpp"
#include "belay/train/safetensors/file_agreement.hpp"

namespace belay::inline BELAY_ABI {

/// The bytes that one store or hook has given back, or taken, in a transition.
struct drained {
  /// The name of the memory, its tier, and how many bytes.
  std::string what;
  tier of = tier::device;
  std::size_t bytes = 0;
};

/// A transition as this rank found it: bytes leased from each tier and those of the process that are in memory, before
/// and after, and what was given back.
struct transition {
  /// The phases, bytes a tier and bytes of the process before and after.
  phase from = phase::train, to = phase::train;
  std::uint64_t after_step = 0;  // the number of the last step; 0: none
  std::array<std::size_t, tier_count> live_before{}, live_after{};
  std::size_t resident_before = 0, resident_after = 0;
  std::span<const drained> given_back{};  // by the stores, then by the hooks of `from` in their order
  std::span<const drained> taken{};       // by the hooks of `to` in their order
  /// Live bytes after it over those after the last transition into `to`; 0 at the first. Positive: something that
  /// belongs to a phase was kept.
  std::array<std::ptrdiff_t, tier_count> grown{};
};

/// That this rank is in phase `P`. Made by a `phase_switch`, which outlives it; moved to the next one.
template <phase P>
class [[nodiscard]] in_phase {
 public:
  /// The phase.
  static constexpr phase which = P;

  in_phase(in_phase&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)) {}
  in_phase& operator=(in_phase&& other) noexcept {
    owner_ = std::exchange(other.owner_, nullptr);
    return *this;
  }

 private:
  template <class, class...>
  friend class phase_switch;
  explicit in_phase(const void* owner) noexcept : owner_(owner) {}

  const void* owner_;
};

/// Run, mesh and stores outlive it.
template <class Run, class... Stores>
class phase_switch {
 public:
  /// All outlive it. No phase has begun yet.
  phase_switch(Run& run, const mesh& mesh, Stores&... stores) : run_(&run), mesh_(&mesh), stores_(stores...) {
    for (std::vector<drained>& each : given_back_)
      each.assign(sizeof...(stores), {"gathered parameters", tier::device, 0});
  }
  phase_switch(const phase_switch&) = delete;
  phase_switch& operator=(const phase_switch&) = delete;

  /// The phase in which a run begins. Throws usage_error when it is called again, and where ranks have different plans
  /// of gathers. Collective as transitions are.
  in_phase<phase::train> begin(where at = where::current()) {
    if (std::exchange(begun_, true))
      throw usage_error("a run begins once: later phases come from to_train, to_eval and to_rollout", at);
    expect_one_plan_of_all(at);
    return in_phase<phase::train>{this};
  }

  /// Whenever `from` is left, `hook()` ends what belongs to it, and returns the bytes that it has given back to tier
  /// `of`; a transition names them as `what`. Hooks are called in the order in which they were given, after the stores
  /// have ended their gathers.
  template <class Hook>
  void on_leave(phase from, std::string what, tier of, Hook hook) {
    constexpr bool returns_bytes = std::is_invocable_r_v<std::size_t, Hook&>;
    static_assert(returns_bytes,
                  "belay: a hook of a phase returns the bytes that it has given back: "
                  "phases.on_leave(phase, \"what\", tier, [&] { return std::size_t{...}; })");
    if constexpr (returns_bytes) {
      given_back_[index(from)].push_back({std::move(what), of, 0});
      hooks_[index(from)].push_back([hook = std::move(hook)](where) mutable { return hook(); });
    }
  }

  /// Whenever `to` is entered, after what the phase before has given back: `hook()` returns the bytes that it has taken
  /// of tier `of`.
  template <class Hook>
  void on_enter(phase to, std::string what, tier of, Hook hook) {
    constexpr bool returns_bytes = std::is_invocable_r_v<std::size_t, Hook&>;
    static_assert(returns_bytes,
                  "belay: a hook of a phase returns the bytes that it has taken: "
                  "phases.on_enter(phase, \"what\", tier, [&] { return std::size_t{...}; })");
    if constexpr (returns_bytes) {
      taken_[index(to)].push_back({std::move(what), of, 0});
      enter_hooks_[index(to)].push_back([hook = std::move(hook)](where) mutable { return hook(); });
    }
  }
  /// Ties `residency` to the phases: what it moves is on the device in training alone (train/phase_residency.hpp). It
  /// outlives this. With tier file a transition is collective over the mesh: what one rank's file refuses is a
  /// file_error of all.
  template <class Residency>
  void moves(Residency& residency);

  /// Leaves a phase for another. Throws usage_error where a step or pass is open, the phase was moved from or ranks
  /// have different plans of gathers, and what a hook throws; then this rank is still in the phase before, and what a
  /// residency moves is where that has it. Collective over the ranks that replicate parameters, between steps.
  template <phase From>
  in_phase<phase::train> to_train(in_phase<From>&& from, where at = where::current()) {
    return enter<phase::train>(std::move(from), at);
  }
  template <phase From>
  in_phase<phase::eval> to_eval(in_phase<From>&& from, where at = where::current()) {
    return enter<phase::eval>(std::move(from), at);
  }
  template <phase From>
  in_phase<phase::rollout> to_rollout(in_phase<From>&& from, where at = where::current()) {
    return enter<phase::rollout>(std::move(from), at);
  }

  /// The last transition.
  [[nodiscard]] const transition& last() const noexcept { return last_; }

 private:
  static constexpr std::size_t index(phase of) noexcept { return static_cast<std::size_t>(of); }

  template <phase To, phase From>
  in_phase<To> enter(in_phase<From>&& from, where at) {
    static_assert(To != From, "belay: this rank is in that phase already: a transition goes to another one");
    enter(From, To, from.owner_, at);
    from.owner_ = nullptr;
    return in_phase<To>{this};
  }
  // `owner` is the switch that phase `from` was given by, or null.
  void enter(phase from, phase to, const void* owner, where at);

  // All that `from` has goes, and then what `to` has comes: on all ranks, or on none.
  void change(phase from, phase to, where at);
  void drain(phase from, where at);
  void expect_one_plan_of_all(where at);
  [[nodiscard]] std::array<std::size_t, tier_count> live_bytes() const noexcept;

  struct entry_memory {
    std::array<std::size_t, tier_count> live{};
    bool known = false;
  };

  Run* run_;
  const mesh* mesh_;
  std::tuple<Stores&...> stores_;
  std::array<std::vector<drained>, phase_count> given_back_;
  std::array<std::vector<std::function<std::size_t(where)>>, phase_count> hooks_;
  std::array<std::vector<drained>, phase_count> taken_;
  std::array<std::vector<std::function<std::size_t(where)>>, phase_count> enter_hooks_;
  std::vector<std::function<void(phase, where)>> put_back_;  // what moves, after a transition that failed
  std::array<entry_memory, phase_count> entered_{};
  rank_comparison compared_;
  transition last_;
  bool begun_ = false;
  bool agrees_ = false;  // on what fails of a rank's files
};

template <class Run, class... Stores>
phase_switch(Run&, const mesh&, Stores&...) -> phase_switch<Run, Stores...>;

template <class Run, class... Stores>
void phase_switch<Run, Stores...>::enter(phase from, phase to, const void* owner, where at) {
  if (owner != this)
    throw usage_error("this phase was moved from, or belongs to another phase_switch: " + std::string(name(from)), at);
  auto& engine = run_->engine();
  engine.expect_between_steps(at);
  engine.synchronize(at);
  transition found{.from = from, .to = to, .after_step = engine.step_number()};
  found.live_before = live_bytes();
  found.resident_before = resident_memory();
  expect_one_plan_of_all(at);
  change(from, to, at);
  found.given_back = given_back_[index(from)];
  found.taken = taken_[index(to)];
  found.live_after = live_bytes();
  found.resident_after = resident_memory();
  entry_memory& before = entered_[index(to)];
  for (std::size_t t = 0; t < tier_count && before.known; ++t)
    found.grown[t] = static_cast<std::ptrdiff_t>(found.live_after[t] - before.live[t]);
  before = {found.live_after, true};
  engine.enter(to, at);
  last_ = found;
}

template <class Run, class... Stores>
void phase_switch<Run, Stores...>::change(phase from, phase to, where at) {
  safetensors::file_agreement problems;
  const auto call_hooks = [&] {
    drain(from, at);
    for (std::size_t i = 0; i < taken_[index(to)].size(); ++i)
      taken_[index(to)][i].bytes = enter_hooks_[index(to)][i](at);
  };
  try {
    if (!agrees_) return call_hooks();
    problems.attempt(call_hooks);
    problems.agree(mesh_->control(), at);
  } catch (...) {
    for (const auto& put_back : put_back_) {
      try {
        put_back(from, at);
      } catch (...) {  // what failed before is why
      }
    }
    throw;
  }
}

template <class Run, class... Stores>
void phase_switch<Run, Stores...>::drain(phase from, where at) {
  std::vector<drained>& all = given_back_[index(from)];
  std::size_t number = 0;
  std::apply([&](Stores&... store) { ((all[number++].bytes = store.drain(at)), ...); }, stores_);
  for (const auto& hook : hooks_[index(from)]) all[number++].bytes = hook(at);
}

template <class Run, class... Stores>
void phase_switch<Run, Stores...>::expect_one_plan_of_all(where at) {
  const auto compare = [&](const Stores&... store) {
    (expect_one_plan(compared_, mesh_->replicas(), store.plan_hash(), at), ...);
  };
  std::apply(compare, stores_);
}

template <class Run, class... Stores>
std::array<std::size_t, tier_count> phase_switch<Run, Stores...>::live_bytes() const noexcept {
  std::array<std::size_t, tier_count> out{};
  for (std::size_t t = 0; t < tier_count; ++t) out[t] = run_->meters()[static_cast<tier>(t)].live_bytes();
  return out;
}

template <class Run, class... Stores>
template <class Residency>
void phase_switch<Run, Stores...>::moves(Residency& residency) {
  if (residency.lower() == tier::device) return;
  const auto add = [](std::vector<drained>& names, auto& hooks, auto hook) {
    names.push_back({"gradients and optimizer state", tier::device, 0});
    hooks.push_back(std::move(hook));
  };
  constexpr std::size_t train = index(phase::train);
  add(given_back_[train], hooks_[train], [&](where at) { return residency.offload(at); });
  add(taken_[train], enter_hooks_[train], [&](where at) { return residency.restore(at); });
  put_back_.push_back(
      [&](phase into, where at) { into == phase::train ? residency.restore(at) : residency.offload(at); });
  if (residency.lower() == tier::file) agrees_ = true;
}

}  // namespace belay::inline BELAY_ABI
