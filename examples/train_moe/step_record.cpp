// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/step_record.hpp"

#include <numeric>
#include <string_view>

#include "belay/comm/reduction.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/schedule.hpp"
#include "train_moe/run_schedule.hpp"

namespace train_moe {

step_record::step_record(const options& settings, rank_run& run) {
  const belay::schedule::dynamic_table table = schedule_of(settings);
  for (std::size_t rank = 0; rank < table.ranks(); ++rank) actions_ = std::max(actions_, table.actions(rank).size());
  if (2 * actions_ * table.ranks() > most_numbers) actions_ = 0;
  if (actions_ == 0) return;
  const std::size_t moments = std::min(actions_, most_moments) + 1;  // and after the step
  all_ = run.lease_numbers(2 * actions_ * table.ranks() + width * moments, "report");
  times_ = all_.first(2 * actions_ * table.ranks());
  moments_ = all_.subspan(times_.size());
  kept_.resize(moments_.size());
}

void step_record::watch(rank_trainer& trainer, const std::vector<belay::report_row>& rows) {
  if (!any()) return;
  shown_ = &trainer.run();
  rows_ = rows;
  own_ = trainer.executed().size();
  trainer.watch_actions(*this);
}

void step_record::given(std::size_t number) {
  if (number < own_) note(*shown_, number * moments_of(own_) / own_);
}

void step_record::gather(rank_trainer& trainer) {
  if (!any()) return;
  std::fill(all_.begin(), all_.end(), 0.0);
  const auto& place = trainer.mesh().coordinate();
  if (place.data == 0 && place.expert == 0) {
    double* out = &times_[2 * actions_ * static_cast<std::size_t>(place.pipeline)];
    for (const belay::executed_action& each : trainer.executed()) {
      *out++ = static_cast<double>(each.begin);
      *out++ = static_cast<double>(each.end);
    }
  }
  if (shown_ != nullptr) {
    note(*shown_, moments());
    std::copy(kept_.begin(), kept_.end(), moments_.begin());
    std::fill(kept_.begin(), kept_.end(), 0.0);
  }
  trainer.mesh().control().all_reduce(all_, belay::sum);
}

void step_record::find_places(const rank_run& run) {
  if (leases_ == run.lasting_leases()) return;
  leases_ = run.lasting_leases();
  place_of_.clear();
  run.each_live([this](belay::tier in, std::string_view purpose, std::size_t) {
    const auto is = [&](const belay::report_row& row) { return row.tier == belay::name(in) && row.purpose == purpose; };
    const auto at = static_cast<std::size_t>(std::ranges::find_if(rows_, is) - rows_.begin());
    place_of_.push_back(rows_.size() <= most_rows && at < rows_.size() ? at : most_rows);
  });
}

void step_record::note(const rank_run& run, std::size_t moment) {
  find_places(run);
  std::fill(std::begin(now_), std::end(now_), 0.0);
  std::size_t number = 0;
  run.each_live([&](belay::tier, std::string_view, std::size_t bytes) {
    const std::size_t place = number < place_of_.size() ? place_of_[number] : most_rows;
    ++number;
    if (place < most_rows) now_[place] += static_cast<double>(bytes);
  });
  now_[most_rows] = static_cast<double>(run.open_obligations());
  double* const out = &kept_[width * moment];
  if (std::accumulate(now_, now_ + most_rows, 0.0) >= std::accumulate(out, out + most_rows, 0.0))
    std::copy_n(now_, width, out);
}

}  // namespace train_moe
