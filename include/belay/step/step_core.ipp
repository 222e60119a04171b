// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The course of a step, out of its class: a program links that of host engines, and compiles those of its own kits.
#pragma once

#include <cstdio>
#include <exception>
#include <string>
#include <utility>

#include "belay/core/error.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/ledger.hpp"
#include "belay/step/step_core.hpp"

namespace belay::inline BELAY_ABI {

template <class Engine>
step_core<Engine>::step_core(Engine& of, where at, std::span<participant* const> participants)
    : engine_(&of), at_(at), participants_(participants) {
  engine_->begin_step(at_);
  try {
    const step_start start{1, order()};
    for (participant* const each : participants_) {
      if (engine_->room() != 0) each->make_room(static_cast<std::size_t>(engine_->room()), at_);
      each->begin(start, at_);
    }
  } catch (...) {
    cut_off();
    throw;
  }
}

template <class Engine>
void step_core<Engine>::abandon() noexcept {
  if (std::uncaught_exceptions() == 0) report_abandoned();
  cut_off();
}

template <class Engine>
void step_core<Engine>::cut_off() noexcept {
  if (std::exchange(ended_, true)) return;
  engine_->cancel_queued();  // it may be in what the participants withdraw
  for (participant* const each : participants_) each->withdraw();
  engine_->end_step();
}

template <class Engine>
void step_core<Engine>::micro_batches(std::size_t count, where at) const {
  const step_start start{count, order()};
  for (participant* const each : participants_) each->begin(start, at);
}

template <class Engine>
void step_core<Engine>::add(const ballot& findings) noexcept {
  findings_.non_finite += findings.non_finite;
  findings_.loss += findings.loss;
  findings_.unwritten += findings.unwritten;
  findings_.unwritable += findings.unwritable;
  findings_.asked_to_stop += findings.asked_to_stop;
  if (findings.needed_rows > findings_.needed_rows) findings_.needed_rows = findings.needed_rows;
}

template <class Engine>
ended_step step_core<Engine>::commit(function_ref<ballot(const ballot&)> vote, where at) {
  read_findings(at);
  std::string list = close_obligations();
  ended_step out;
  out.summary.number = engine_->step_number();
  engine_->finish_copies(at);
  ended_ = true;
  engine_->end_step();
  expect_no_obligations(list, at);
  const ballot all = vote(findings_);
  out.how = end_of_step::refused;
  if (all.open_obligations + all.misused_handles > 0) {
    out.why = {all, std::move(list)};
  } else if (all.needed_rows > 0) {
    out.how = end_of_step::replay;
    out.needed_rows = all.needed_rows;
  } else if (all.non_finite > 0) {
    out.why = {all, {}};
  } else {
    out.how = end_of_step::committed;
  }
  return out;
}

template <class Engine>
ended_step step_core<Engine>::commit(const step_ranks& ranks, const divisor_value& divisor, where at) {
  compare(at);  // a device whose ranks have not queued the same would not come to its end
  read_findings(at);
  std::string list = close_obligations();
  if (findings_.open_obligations > 0) expect_no_obligations(list, at);
  if (ranks.expect_same(order(), choices(), own_order(), at) == order_of_step::abandoned) {
    for (participant* const each : participants_) each->abandon(at);
    const ballot all = vote(ranks, no_divisor, at);
    end(end_of_step::refused, at);
    return refused(all, std::move(list));
  }
  ended_step out;
  out.summary.number = engine_->step_number();
  // In the order in which they were named: each may be collective.
  for (participant* const each : participants_) each->finish(divisor, at);
  double squares = 0;
  for (participant* const each : participants_) {
    const participant::reduced_sums own = each->reduced();
    if (!own.reduces) continue;
    squares += own.squares;
    out.summary.divisor = own.divisor;
  }
  out.summary.norm = __builtin_sqrt(squares);
  for (participant* const each : participants_) add(each->findings());
  if (!engine_->rehearsing() && !is_finite(squares)) ++findings_.non_finite;
  const ballot all = vote(ranks, out.summary.divisor, at);
  out.summary.loss = all.loss;
  const bool is_refused =
      all.open_obligations + all.misused_handles > 0 || (all.needed_rows == 0 && all.non_finite > 0);
  if (is_refused) list = all.non_finite > 0 ? not_finite(out.summary.number) : std::string();
  if (is_refused || all.needed_rows > 0)
    for (participant* const each : participants_) each->discard_part();
  out.how = is_refused ? end_of_step::refused : all.needed_rows > 0 ? end_of_step::replay : end_of_step::committed;
  end(out.how, at);
  if (is_refused) return refused(all, std::move(list));
  if (out.how == end_of_step::replay) engine_->note_rows(all.needed_rows);
  out.needed_rows = all.needed_rows;
  return out;
}

template <class Engine>
void step_core<Engine>::compare(where at) const {
  for (participant* const each : participants_) each->compare(own_order(), at);
}

template <class Engine>
order_of_step step_core<Engine>::own_order() const noexcept {
  const ledger& obligations = engine_->obligations();
  const bool whole = obligations.open_count() + obligations.misuse_count() == 0;
  return whole ? order_of_step::executed : order_of_step::abandoned;
}

template <class Engine>
ballot step_core<Engine>::vote(const step_ranks& ranks, std::uint64_t divisor, where at) const {
  const ballot all = ranks.vote(findings_, divisor, at);
  for (participant* const each : participants_) each->learn(all);
  return all;
}

template <class Engine>
void step_core<Engine>::read_findings(where at) {
  const kernel::findings_record& found = engine_->read_findings(at);
  if (found.wrong > 0) [[unlikely]] {
    const kernel::finding first = found.first_wrong;
    const std::uint64_t wrong = found.wrong;
    cut_off();
    engine_->expect_right(wrong, first);
  }
  add({.non_finite = found.quantized_not_finite, .needed_rows = found.needed_rows, .loss = found.loss});
  if (found.not_finite + found.quantized_not_finite > 0) first_not_finite_ = found.first_not_finite;
}

template <class Engine>
std::string step_core<Engine>::close_obligations() {
  const ledger& obligations = engine_->obligations();
  findings_.open_obligations = obligations.open_count();
  findings_.misused_handles = obligations.misuse_count();
  return findings_.open_obligations > 0 ? obligations.text() : std::string();
}

template <class Engine>
void step_core<Engine>::expect_no_obligations(const std::string& list, where at) {
  if constexpr (checked(check_level::local)) {
    if (findings_.open_obligations == 0) return;
    cut_off();
    throw open_obligations(list, static_cast<std::size_t>(findings_.open_obligations), at);
  }
}

template <class Engine>
std::uint64_t step_core<Engine>::order() const {
  fnv1a hash;
  for (const participant* const each : participants_) hash.add(each->fingerprint());
  return hash.value();
}

template <class Engine>
kit_choices* step_core<Engine>::choices() const noexcept {
  if constexpr (choosing_kit<typename Engine::kit_type>)
    return &engine_->kit().choices();
  else
    return nullptr;
}

template <class Engine>
std::string step_core<Engine>::not_finite(std::uint64_t number) const {
  std::string out = "  step " + std::to_string(number) + " of this engine", given_back;
  const auto name_owner = [&](double found) {
    if (given_back.empty()) given_back = engine_->given_back(found);
  };
  for (const participant* const each : participants_) {
    out += each->not_finite();
    each->each_not_finite(name_owner);
  }
  out += "\n";
  if (first_not_finite_.kind != kernel::finding_kind::nothing) {
    out += "  " + text(first_not_finite_) + ", at " + site_of(first_not_finite_).text() + "\n";
    if (first_not_finite_.kind == kernel::finding_kind::not_finite)
      name_owner(__builtin_bit_cast(double, first_not_finite_.value));
  }
  if (!given_back.empty()) out += "  " + given_back + "\n";
  return out;
}

template <class Engine>
void step_core<Engine>::end(end_of_step how, where at) {
  engine_->finish_copies(at);
  ended_ = true;
  engine_->end_step();
  engine_->note_end(how);
}

template <class Engine>
ended_step step_core<Engine>::refused(const ballot& all, std::string list) const {
  ended_step out;
  out.how = end_of_step::refused;
  out.why = {all, std::move(list)};
  out.unread = &engine_->note_refusal(text(out.why), at_);
  return out;
}

template <class Engine>
void step_core<Engine>::report_abandoned() const noexcept {
  try {
    const std::string list = engine_->obligations().text();
    const std::string what = std::string("a step ended without commit") +
                             (list.empty() ? ": commit it, or end it with step.cut_off()" : ", with open obligations");
    std::fprintf(stderr, "%s: belay: %s\n%s", at_.text().c_str(), what.c_str(), list.c_str());
    engine_->note_refusal(what, at_) = true;  // a loop over `run.steps` throws it
  } catch (...) {                             // no memory for the list; the step's memory is reclaimed nevertheless
  }
}

}  // namespace belay::inline BELAY_ABI
