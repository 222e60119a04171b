// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a page shows as numbers and tables: the last step, what each rank waits, the plan, the settings.
// IWYU pragma: private, include "belay/report/page.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "belay/core/config.hpp"
#include "belay/report/page/history.hpp"
#include "belay/report/page/markup.hpp"
#include "belay/report/page/room.hpp"
#include "belay/report/page/sample.hpp"

namespace belay::inline BELAY_ABI {

/// The waiting of each rank: the mean over the steps, as a share of its pipeline phase.
class rank_waiting {
 public:
  [[nodiscard]] static constexpr std::size_t room_bytes(std::size_t ranks) noexcept {
    return 2 * report_room::bytes<double>(ranks);
  }
  rank_waiting(std::size_t ranks, report_room& room)
      : sums_(room.take<double>(ranks)), sorted_(room.take<double>(ranks)) {}

  /// Adds each rank's share of waiting in a step; shares of another number of ranks are left out.
  void add(std::uint64_t step, std::span<const double> waiting, report_history& history) noexcept {
    if (waiting.size() != sums_.size() || waiting.empty()) return;
    for (std::size_t rank = 0; rank < waiting.size(); ++rank) {
      const double here = waiting[rank] - waiting[rank] == 0 ? waiting[rank] : 0;
      sums_[rank] += here;
      sorted_[rank] = here;
    }
    ++count_;
    std::sort(sorted_.begin(), sorted_.end());
    history.add(report_curve::waiting_least, step, sorted_.front());
    history.add(report_curve::waiting_median, step, sorted_[sorted_.size() / 2]);
    history.add(report_curve::waiting_most, step, sorted_.back());
  }

  /// The run goes on: the mean is of the steps from here on.
  void begin_again() noexcept {
    std::fill(sums_.begin(), sums_.end(), 0.0);
    count_ = 0;
  }

  [[nodiscard]] bool any() const noexcept { return count_ > 0; }
  [[nodiscard]] std::size_t ranks() const noexcept { return sums_.size(); }
  [[nodiscard]] double mean(std::size_t rank) const noexcept { return sums_[rank] / static_cast<double>(count_); }
  /// The rank whose mean is number `place` of all, from the least on.
  [[nodiscard]] std::size_t rank_at(std::size_t place) const noexcept {
    for (std::size_t rank = 0; rank < ranks(); ++rank)
      if (place_of(rank) == place) return rank;
    return 0;
  }
  /// The ranks that have waited least, which the others wait for: how many have waited less than `rank`.
  [[nodiscard]] std::size_t place_of(std::size_t rank) const noexcept {
    std::size_t less = 0;
    for (std::size_t other = 0; other < ranks(); ++other)
      less += sums_[other] < sums_[rank] || (sums_[other] == sums_[rank] && other < rank) ? 1 : 0;
    return less;
  }

 private:
  std::span<double> sums_;
  std::span<double> sorted_;
  std::uint64_t count_ = 0;
};

class page_tables {
 public:
  static constexpr std::size_t most_ranks = 16;  // each with a bar of its own
  static constexpr std::size_t most_settings = 200;

  explicit page_tables(page_markup& out) noexcept : out_(&out) {}

  /// The last values, one a tile.
  void tiles(const report_subject& subject, const report_history& history, std::span<const report_tier_rows> tiers) {
    *out_ << "<div class=\"tiles\">";
    *out_ << "<div><b>" << history.trained();
    *out_ << "</b><span>";
    if (subject.steps > 0) *out_ << "of " << subject.steps << " ";
    *out_ << ((subject.steps > 0 ? subject.steps : history.trained()) == 1 ? "step" : "steps") << "</span></div>";
    tile(history, report_curve::loss, "loss");
    tile(history, report_curve::eval_loss, "eval loss");
    tile(history, report_curve::tokens_per_s, "tokens/s");
    tile(history, report_curve::flops_utilization, "FLOPs utilization", page_unit::share);
    tile(history, report_curve::grad_norm, "gradient norm");
    tile(history, report_curve::bubble, "bubble", page_unit::share);
    for (std::size_t i = 0; i < tiers.size() && i < report_history::most_tiers; ++i) {
      const std::uint64_t of_any = history.current_most(i), most = of_any > 0 ? of_any : history.current_peak(i);
      if (most == 0) continue;
      *out_ << "<div><b>";
      out_->bytes(static_cast<double>(most), 3) << "</b><span>";
      out_->text(tiers[i].tier, 20) << ", at most";
      if (subject.ranks > 1 && of_any > 0) *out_ << " on any rank";
      if (subject.ranks > 1 && of_any == 0) *out_ << " on rank " << subject.shown_rank;
      *out_ << "</span></div>";
    }
    *out_ << "</div>\n";
  }

  /// A bar a rank; of more than 16 the least, median and most, and the four that wait least.
  void waiting(const rank_waiting& ranks) {
    if (!ranks.any()) return;
    *out_ << "<figure><figcaption><b>Waiting by rank</b> <small>share of the pipeline phase, mean over the steps"
          << (ranks.ranks() > most_ranks ? "; the four that wait least are those that others wait for" : "")
          << "</small></figcaption>\n<div class=\"bars\">";
    if (ranks.ranks() <= most_ranks) {
      for (std::size_t rank = 0; rank < ranks.ranks(); ++rank) bar_of(rank, ranks);
    } else {
      bar("least", ranks.mean(ranks.rank_at(0)));
      bar("median", ranks.mean(ranks.rank_at(ranks.ranks() / 2)));
      bar("most", ranks.mean(ranks.rank_at(ranks.ranks() - 1)));
      for (std::size_t place = 0; place < 4; ++place) bar_of(ranks.rank_at(place), ranks);
    }
    *out_ << "</div></figure>\n";
  }

  /// Planned bytes by tier and purpose.
  void plan(const report_subject& subject) {
    if (subject.memory.empty()) return;
    const bool several = subject.ranks > 1;
    *out_ << "<section><h2>Plan</h2><div class=\"card\"><table><tr><th>tier, purpose</th>";
    if (several) *out_ << "<th class=\"n\">smallest rank</th><th class=\"n\">largest</th>";
    *out_ << "<th class=\"n\">" << (several ? "all ranks" : "bytes") << "</th></tr>\n";
    std::string_view tier;
    std::size_t shown = 0;
    for (const report_row& row : subject.memory) {
      if (++shown > most_settings) break;
      *out_ << "<tr><td>";
      if (row.tier != tier) (*out_ << "<b>").text(row.tier, 20) << "</b> ";
      tier = row.tier;
      out_->text(row.purpose, 80) << "</td>";
      if (several) {
        cell(row.smallest);
        cell(row.largest);
      }
      cell(row.total);
      *out_ << "</tr>\n";
    }
    *out_ << "</table></div></section>\n";
  }

  void settings(const report_subject& subject) {
    if (subject.setup.empty()) return;
    *out_ << "<section><h2>Settings</h2><div class=\"card\"><table>\n";
    for (std::size_t i = 0; i < subject.setup.size() && i < most_settings; ++i) {
      (*out_ << "<tr><td class=\"soft\">").text(subject.setup[i].name, 80) << "</td><td>";
      out_->text(subject.setup[i].value) << "</td></tr>\n";
    }
    *out_ << "</table></div></section>\n";
  }

 private:
  void tile(const report_history& history, report_curve curve, std::string_view label,
            page_unit unit = page_unit::number) {
    if (!history.current(curve)) return;
    *out_ << "<div><b>";
    out_->value(history.last(curve), unit, 4) << "</b><span>" << label << "</span></div>";
  }
  void cell(std::uint64_t bytes) {
    *out_ << "<td class=\"n\">";
    out_->bytes(static_cast<double>(bytes)) << "</td>";
  }
  void bar_of(std::size_t rank, const rank_waiting& ranks) {
    *out_ << "<span>rank " << rank << "</span>";
    bar_itself(ranks.mean(rank));
  }
  void bar(std::string_view label, double share) {
    *out_ << "<span>" << label << "</span>";
    bar_itself(share);
  }
  void bar_itself(double share) {
    *out_ << "<div><i style=\"width:";
    out_->place(100 * std::clamp(share, 0.0, 1.0)) << "%\"></i></div><span class=\"n\">";
    out_->share(share) << "</span>";
  }

  page_markup* out_;
};

}  // namespace belay::inline BELAY_ABI
