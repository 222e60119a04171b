// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/run_report.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "belay/core/error.hpp"
#include "belay/core/finite.hpp"
#include "input/problem_text.hpp"
#include "train_moe/run_schedule.hpp"

namespace train_moe {

namespace {

// Of a compute.
belay::report_action::pass_kind kind_of(const belay::schedule::action& each) {
  using belay::schedule::action_kind;
  using pass_kind = belay::report_action::pass_kind;
  return each.kind == action_kind::forward           ? pass_kind::forward
         : each.kind == action_kind::input_gradient  ? pass_kind::input_gradient
         : each.kind == action_kind::weight_gradient ? pass_kind::weight_gradient
                                                     : pass_kind::backward;
}

}  // namespace

std::string reason_of(const std::exception& problem) {
  std::string out = input::problem_text(problem);
  if (const auto* const ours = dynamic_cast<const belay::error*>(&problem); ours != nullptr && ours->at().line > 0)
    if (const std::string site = ours->at().text() + ": "; out.starts_with(site)) out.erase(0, site.size());
  constexpr std::string_view clone = BELAY_SOURCE_DIR "/";
  for (std::size_t at = out.find(clone); at != out.npos; at = out.find(clone, at)) out.erase(at, clone.size());
  return out;
}

run_report::run_report(prepared_run& prepared, rank_run& run) {
  if (prepared.line.report.empty()) return;
  wanted_ = true;
  const auto ranks = static_cast<std::size_t>(prepared.line.run.mesh.ranks());
  const auto bytes_of = [ranks](int rank) { return rank == 0 ? belay::report_page::room_bytes(ranks) : 0; };
  const std::span<std::byte> room = run.lease_bytes(bytes_of, "report");
  record_ = step_record(prepared.line.run, run);
  if (run.rehearsing()) return;
  shown_rank_ = belay::fullest_rank(prepared.plan.plan);
  plan_ = &prepared.plan.plan;
  if (!room.empty()) begin(prepared, room);
}

void run_report::watch(rank_trainer& trainer) {
  if (!wanted_) return;
  if (!trainer.rehearsing() && static_cast<std::size_t>(trainer.mesh().control().rank()) == shown_rank_)
    record_.watch(trainer, belay::report_rows(*plan_, shown_rank_));
  waits_.open(trainer);
}

void run_report::begin(prepared_run& prepared, std::span<std::byte> room) {
  const options& run = prepared.line.run;
  belay::report_subject subject = prepared.subject();
  learning_rate_ = run.learning_rate;
  peak_flops_ = prepared.line.peak_flops * static_cast<double>(subject.ranks);
  flops_per_token_ = model_flops_per_token(run);
  rows_ = subject.memory;
  tiers_ = belay::tiers_of(rows_);
  // Without a record the tiers' bytes alone are known.
  if (record_.any() && rows_.size() <= step_record::most_rows) live_.resize(rows_.size());
  bytes_.resize(tiers_.size());
  waiting_.resize(subject.ranks);
  schedule_ = std::make_unique<const belay::schedule::dynamic_table>(schedule_of(run));
  player_.emplace(*schedule_);
  table_.emplace(run, schedule_->stages());
  ranks_of_stage_ = ranks_of_stage(run);
  executed_.reserve(schedule_->size()), planned_.reserve(schedule_->size());
  moments_.reserve(step_record::most_moments), moment_live_.reserve(step_record::most_moments * live_.size());
  page_.emplace(*prepared.report, std::move(subject), room);
}

void run_report::resume_after(std::size_t step) {
  if (page_) page_->resume_after(step, belay::where{});
}

void run_report::read_bytes(const belay::step_report& printed) {
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    const belay::report_tier_rows& tier = tiers_[i];
    const belay::tier_report& from = tier.tier == belay::name(belay::tier::device)   ? printed.device
                                     : tier.tier == belay::name(belay::tier::pinned) ? printed.pinned
                                     : tier.tier == belay::name(belay::tier::host)   ? printed.host
                                                                                     : printed.file;
    bytes_[i] = {};
    if (from.used())
      bytes_[i] = {from.live[shown_rank_], from.peak[shown_rank_], from.planned[shown_rank_],
                   *std::ranges::max_element(from.peak)};
  }
  if (record_.any())
    for (std::size_t row = 0; row < live_.size(); ++row) live_[row] = record_.live(record_.moments(), row);
}

// The first pipeline's actions, and the schedule played with each stage's mean times, as that which predicts the
// bubble.
void run_report::read_schedules(std::span<const double> shared) {
  executed_.clear(), planned_.clear(), moments_.clear(), moment_live_.clear();
  if (!record_.any()) return;
  const bool known = !belay::is_nan(shared[table_->of_rank(0, report_table::bubble)]);  // else of a device
  for (std::size_t rank = 0; rank < schedule_->ranks() && known; ++rank) {
    std::size_t number = 0;
    for (const belay::schedule::action& next : schedule_->actions(rank)) {
      if (!next.is_exchange())
        executed_.push_back({rank, next.micro_batch, kind_of(next), 1e-9 * record_.begin(rank, number),
                             1e-9 * record_.end(rank, number), next.chunk});
      ++number;
    }
  }
  auto watch = [&](std::size_t rank, const belay::schedule::action& next, double begin, double end) {
    planned_.push_back({rank, next.micro_batch, kind_of(next), begin, end, next.chunk});
  };
  if (known) player_->play_times(stage_seconds{&*table_, shared, ranks_of_stage_}, watch);
  const std::size_t moments = record_.moments_of(schedule_->actions(shown_rank_ / ranks_of_stage_).size());
  for (std::size_t moment = 0; moment < moments; ++moment) {
    std::uint64_t of_first_tier = 0;
    for (std::size_t row = 0; row < live_.size(); ++row) {
      moment_live_.push_back(record_.live(moment, row));
      of_first_tier += row < tiers_.front().count ? moment_live_.back() : 0;
    }
    moments_.push_back({of_first_tier, record_.open(moment)});
  }
}

void run_report::add(const belay::step_report& printed, const step_result& result, std::span<const double> shared) {
  if (!page_) return;
  read_bytes(printed);
  read_schedules(shared);
  const bool pipelined = schedule_->ranks() > 1;  // else nobody waits for a neighbour
  for (std::size_t rank = 0; rank < waiting_.size(); ++rank)
    waiting_[rank] = shared[table_->of_rank(rank, report_table::bubble)];
  belay::report_sample sample;
  sample.step = printed.step;
  sample.loss = printed.loss;
  sample.learning_rate = learning_rate_;
  sample.tokens_per_s = printed.tokens_per_s;
  sample.grad_norm = printed.grad_norm;
  if (peak_flops_ > 0) sample.flops_utilization = flops_per_token_ * printed.tokens_per_s / peak_flops_;
  if (pipelined && !belay::is_nan(printed.bubble)) {
    sample.bubble = printed.bubble, sample.bubble_predicted = printed.bubble_predicted;
    sample.waiting = waiting_, sample.executed = executed_, sample.planned = planned_;
  }
  sample.replays = result.replays, sample.plan_misses = printed.plan_misses;
  sample.tiers = bytes_, sample.live = live_, sample.moments = moments_;
  sample.moment_live = moment_live_;
  sample.expert_tokens = printed.expert_tokens;
  sample.waits = waits_.waits(), sample.waits_step = std::exchange(before_, printed.step);
  page_->add(sample);
  say_problem();
}

void run_report::add_eval_loss(std::size_t step, double loss) {
  if (!page_) return;
  page_->add_eval_loss(step, loss);
  say_problem();
}

void run_report::mark(belay::report_mark which, std::size_t step) {
  if (!page_) return;
  page_->mark(which, step);
  say_problem();
}

void run_report::finish(std::string_view sample) {
  if (!page_) return;
  page_->finish(sample);
  say_problem();
}

void run_report::stop() {
  if (!page_) return;
  page_->stop();
  say_problem();
}

void run_report::fail(const std::exception& problem) {
  if (!page_) return;
  page_->fail(reason_of(problem));
  say_problem();
}

void run_report::say_problem() {
  if (const auto problem = page_->take_problem())
    std::fprintf(stderr, "train_moe: no more of the report is written, training goes on: %s\n",
                 reason_of(*problem).c_str());
}

}  // namespace train_moe
