// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A body's rehearsal out of its class: a program links that of engines of the host, and compiles others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/device/available_memory.hpp"
#include "belay/train/rank_rehearsal.hpp"

namespace belay::inline BELAY_ABI {

template <class Engine>
rank_rehearsal<Engine>::rank_rehearsal(int number, int size,
                                       std::type_identity_t<function_ref<void(belay::rank&, run_type&)>> body,
                                       std::uint64_t rows, where at, computes_on on, const group_traits& promises,
                                       fault_explanation faults)
    : number_(number), promises_(promises), faults_(faults) {
  announce_rehearsal(faults);
  run_memory memory = everything();
  memory.computes = on;
  rehearse(size, body, memory, rows, at);
  memory.gathers = run_->gathers();
  memory.returns = run_->leased().memory.returns;
  // What is gathered or brought back early has other memory than the body alone shows.
  if (!memory.gathers.empty() || !memory.returns.empty()) rehearse(size, body, memory, rows, at);
}

template <class Engine>
bool rank_rehearsal<Engine>::stands_for(int other) const noexcept {
  return asked_->questions().same(number_, other);
}

template <class Engine>
auto rank_rehearsal<Engine>::leased_by(int other) const -> planned_run {
  return run_->leased_by(other);
}

template <class Engine>
void rank_rehearsal<Engine>::rehearse(int size, function_ref<void(belay::rank&, run_type&)> body,
                                      const run_memory& memory, std::uint64_t rows, where at) {
  run_.reset();
  rank_.reset();
  asked_.emplace(number_, size, promises_, at);
  rank_.emplace(*asked_);
  run_.emplace(number_, size, planned_run{{}, memory}, typename run_type::planner(),
               stream_settings{stream_policy::rehearsal});
  if (faults_ == fault_explanation::by_handler) run_->engine().watch().explain_faults();
  run_->engine().make_room(rows);
  body(*rank_, *run_);
}

template <class Engine>
auto rank_rehearsal<Engine>::everything() -> run_memory {
  run_memory out;
  // Every region gets as much; a sanitizer refuses much more than 64 GiB, a limit on addresses may refuse even that.
  constexpr unsigned most = sanitized_addresses ? 36 : 40;
  out.activations = lesser_of(std::size_t{1} << most, left_in_address_space() / 64);
  out.persistent.fill(out.activations);
  return out;
}

template <class Engine>
rehearsal_result rehearse_on(int size, function_ref<void(belay::rank&, typename run_with<Engine>::type&)> body,
                             computes_on on, const group_traits& promises, fault_explanation faults, where at) {
  rehearsal_result out;
  std::vector<std::optional<planned_run>> all(static_cast<std::size_t>(size));
  for (int number = 0; number < size; ++number) {
    if (all[static_cast<std::size_t>(number)]) continue;
    const rank_rehearsal<Engine> kind(number, size, body, 0, at, on, promises, faults);
    for (int other = number; other < size; ++other)
      if (kind.stands_for(other)) all[static_cast<std::size_t>(other)] = kind.leased_by(other);
    out.meshes.add(kind.meshes());
    out.calls.add(kind.calls());
    ++out.rehearsed;
  }
  std::vector<rank_plan> plans;
  for (auto& each : all) {
    out.memory.push_back(std::move(each->memory));
    plans.push_back(std::move(each->plan));
  }
  out.plan = belay::plan(std::move(plans));
  return out;
}

}  // namespace belay::inline BELAY_ABI
