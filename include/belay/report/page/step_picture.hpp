// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The last step: the pipeline as it ran beside the one that was planned, memory and obligations from action to action.
// IWYU pragma: private, include "belay/report/page.hpp"
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/report/page/history.hpp"
#include "belay/report/page/markup.hpp"
#include "belay/report/page/plot.hpp"
#include "belay/report/page/room.hpp"
#include "belay/report/page/sample.hpp"

namespace belay::inline BELAY_ABI {

/// A copy of what a page shows of the last step alone.
class last_step {
 public:
  static constexpr std::size_t most = 2048;
  static constexpr std::size_t most_bytes = 16384;  // numbers of bytes: moments times rows; of more none is kept

  [[nodiscard]] static constexpr std::size_t room_bytes() noexcept {
    return 2 * report_room::bytes<report_action>(most) + report_room::bytes<report_moment>(most) +
           report_room::bytes<std::uint64_t>(most_bytes);
  }
  explicit last_step(report_room& room)
      : executed_(room.take<report_action>(most)),
        planned_(room.take<report_action>(most)),
        moments_(room.take<report_moment>(most)),
        live_(room.take<std::uint64_t>(most_bytes)) {}

  void keep(const report_sample& sample) noexcept {
    step_ = sample.step;
    executed_count_ = copy(sample.executed, executed_);
    planned_count_ = copy(sample.planned, planned_);
    moment_count_ = copy(sample.moments, moments_);
    rows_ = moment_count_ == 0 ? 0 : sample.moment_live.size() / moment_count_;
    if (rows_ * moment_count_ != sample.moment_live.size() || sample.moment_live.size() > most_bytes) rows_ = 0;
    std::copy_n(sample.moment_live.begin(), rows_ * moment_count_, live_.begin());
    for (std::size_t number = 0; number < planned_bytes_.size(); ++number)
      planned_bytes_[number] = number < sample.tiers.size() ? sample.tiers[number].planned : 0;
  }

  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }
  [[nodiscard]] std::span<const report_action> executed() const noexcept { return executed_.first(executed_count_); }
  [[nodiscard]] std::span<const report_action> planned() const noexcept { return planned_.first(planned_count_); }
  [[nodiscard]] std::span<const report_moment> moments() const noexcept { return moments_.first(moment_count_); }
  /// Rows of the subject's memory whose bytes are known at each moment; and those bytes.
  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::uint64_t live(std::size_t moment, std::size_t row) const noexcept {
    return row < rows_ ? live_[moment * rows_ + row] : 0;
  }
  /// The plan of a tier; 0: as the subject has it.
  [[nodiscard]] std::uint64_t planned_bytes(std::size_t number) const noexcept { return planned_bytes_[number]; }

 private:
  template <class T>
  [[nodiscard]] static std::size_t copy(std::span<const T> from, std::span<T> to) noexcept {
    const std::size_t count = lesser_of(from.size(), to.size());
    std::copy_n(from.begin(), count, to.begin());
    return count;
  }

  std::span<report_action> executed_, planned_;
  std::span<report_moment> moments_;
  std::span<std::uint64_t> live_;
  std::size_t executed_count_ = 0, planned_count_ = 0, moment_count_ = 0, rows_ = 0;
  std::uint64_t step_ = 0;
  std::array<std::uint64_t, report_history::most_tiers> planned_bytes_{};
};

class step_picture {
 public:
  explicit step_picture(page_markup& out) noexcept : out_(&out), plot_(out) {}

  /// Both schedules, a row a stage, or a rank where ranks hold several, from the same beginning and at the same scale,
  /// which is below the last.
  void schedules(const last_step& last) {
    if (last.executed().empty()) return;
    const double length = greater_of(length_of(last.executed()), length_of(last.planned()));
    if (!(length > 0)) return;
    *out_ << "<figure><figcaption><b>Pipeline of step " << last.step() << "</b> <small>idle time is shaded"
          << (holds_several(last.executed()) ? ", later stages are lighter" : "") << "</small>";
    for (const shown_kind& each : shown_kinds)
      if (has(last.executed(), each.what))
        *out_ << "<span class=\"key area c" << each.colour << "\">" << each.words << "</span>";
    *out_ << "<span class=\"key area c9\">idle</span></figcaption>\n<div class=\"schedules\">";
    rows("executed", last.executed(), length, last.planned().empty() ? scale::below : scale::none);
    if (!last.planned().empty()) rows("planned", last.planned(), length, scale::below);
    *out_ << "</div></figure>\n";
  }

  /// Bytes of tier `number` after each action, by purpose. Nothing where no purpose has some.
  void memory(const last_step& last, std::size_t number, const report_tier_rows& tier, const report_subject& subject) {
    const std::size_t moments = last.moments().size();
    if (moments < 2 || number >= report_history::most_tiers || last.rows() < tier.first + tier.count) return;
    const std::uint64_t planned = last.planned_bytes(number) > 0 ? last.planned_bytes(number) : tier.planned;
    std::uint64_t most = 0;
    for (std::size_t moment = 0; moment < moments; ++moment) most = greater_of(most, all_of(last, moment, tier));
    if (most == 0) return;
    const page_axis axis = page_axis::around(0, of(greater_of(most, planned)), page_unit::bytes);
    choose(last, tier, subject);
    plot_.caption(tier.tier, "over the last step's pipeline");
    bool rest = false;
    for (std::size_t moment = 0; moment < moments; ++moment)
      rest = rest || stacked(last, moment, chosen_) < all_of(last, moment, tier);
    for (std::size_t i = 0; i < chosen_; ++i) {
      std::uint64_t here = 0;
      for (std::size_t moment = 0; moment < moments; ++moment) here = greater_of(here, last.live(moment, rows_[i]));
      plot_.key(colours_[i], subject.memory[rows_[i]].purpose, "key area").bytes(of(here), 3) << "</span>";
    }
    if (rest) plot_.key(9, "other", "key area") << "</span>";
    plot_.key(8, "at most").bytes(of(most), 3) << "</span>";
    if (planned > 0) plot_.key(8, "planned", "key dashed").bytes(of(planned), 3) << "</span>";
    plot_.end_caption();
    plot_.begin(tier.tier, axis);
    const auto share_of = [&](std::uint64_t bytes) { return axis.share(of(bytes)); };
    for (std::size_t i = 0; i < chosen_; ++i)
      stairs(
          colours_[i], moments, [&](std::size_t moment) { return share_of(stacked(last, moment, i + 1)); },
          [&](std::size_t moment) { return share_of(stacked(last, moment, i)); });
    if (rest)
      stairs(
          9, moments, [&](std::size_t moment) { return share_of(all_of(last, moment, tier)); },
          [&](std::size_t moment) { return share_of(stacked(last, moment, chosen_)); });
    if (planned > 0) {
      *out_ << "<path class=\"line dashed c8\" d=\"M";
      plot_.point(0, share_of(planned));
      *out_ << "H1000\"/>";
    }
    plot_.end(1, moments, "action ");
  }

  void open_obligations(const last_step& last) {
    const auto moments = last.moments();
    if (moments.size() < 2) return;
    std::uint64_t most = 0;
    for (const report_moment& each : moments) most = greater_of(most, each.open);
    const page_axis axis = page_axis::around(0, static_cast<double>(most), page_unit::number);
    plot_.caption("Open obligations", "over the last step's pipeline");
    plot_.key(3, "at most") << most << "</span>";
    plot_.end_caption();
    plot_.begin("Open obligations", axis);
    stairs(
        3, moments.size(), [&](std::size_t moment) { return axis.share(of(moments[moment].open)); },
        [](std::size_t) { return 0.0; });
    plot_.end(1, moments.size(), "action ");
  }

 private:
  // The largest purposes of the plan that have bytes, in its order and with the colours that they have over the run.
  void choose(const last_step& last, const report_tier_rows& tier, const report_subject& subject) noexcept {
    chosen_ = 0;
    const tier_colours colours(subject);
    for (std::size_t row = tier.first; row < tier.first + tier.count; ++row) {
      bool any = false;
      for (std::size_t moment = 0; moment < last.moments().size(); ++moment) any = any || last.live(moment, row) > 0;
      if (const std::size_t colour = colours.of(row); any && colour != tier_colours::none) {
        colours_[chosen_] = colour;
        rows_[chosen_++] = row;
      }
    }
  }
  [[nodiscard]] std::uint64_t stacked(const last_step& last, std::size_t moment, std::size_t count) const noexcept {
    std::uint64_t out = 0;
    for (std::size_t i = 0; i < count; ++i) out += last.live(moment, rows_[i]);
    return out;
  }
  [[nodiscard]] static std::uint64_t all_of(const last_step& last, std::size_t moment,
                                            const report_tier_rows& tier) noexcept {
    std::uint64_t out = 0;
    for (std::size_t row = tier.first; row < tier.first + tier.count; ++row) out += last.live(moment, row);
    return out;
  }
  [[nodiscard]] static double of(std::uint64_t number) noexcept { return static_cast<double>(number); }
  [[nodiscard]] static double begin_of(std::span<const report_action> actions) noexcept {
    double out = actions.empty() ? 0 : actions.front().begin;
    for (const report_action& each : actions) out = lesser_of(out, each.begin);
    return out;
  }
  [[nodiscard]] static double length_of(std::span<const report_action> actions) noexcept {
    double out = 0;
    for (const report_action& each : actions) out = greater_of(out, each.end - begin_of(actions));
    return out;
  }

  struct shown_kind {
    report_action::pass_kind what;
    std::size_t colour;
    const char* words;
  };
  static constexpr shown_kind shown_kinds[] = {{report_action::pass_kind::forward, 0, "forward"},
                                               {report_action::pass_kind::backward, 2, "backward"},
                                               {report_action::pass_kind::input_gradient, 13, "input gradient"},
                                               {report_action::pass_kind::weight_gradient, 4, "weight gradient"}};
  [[nodiscard]] static bool has(std::span<const report_action> actions, report_action::pass_kind what) noexcept {
    return std::ranges::any_of(actions, [what](const report_action& each) { return each.what == what; });
  }
  [[nodiscard]] static bool holds_several(std::span<const report_action> actions) noexcept {
    return std::ranges::any_of(actions, [](const report_action& each) { return each.chunk > 0; });
  }

  enum class scale { none, below };
  void rows(std::string_view label, std::span<const report_action> actions, double length, scale time) {
    std::size_t stages = 0;
    for (const report_action& each : actions) stages = greater_of(stages, each.stage + 1);
    const bool several = holds_several(actions);
    const double begin = begin_of(actions);
    *out_ << "<span>" << label << "</span><div class=\"plot stages" << (time == scale::below ? " timed" : "")
          << "\" style=\"--rows:" << stages << "\"><div class=\"y\">";
    for (std::size_t stage = 0; stage < stages; stage += (stages + 15) / 16) {
      *out_ << "<span style=\"top:";
      out_->place(100 * (of(stage) + 0.5) / of(stages)) << (several ? "%\">rank " : "%\">stage ") << stage << "</span>";
    }
    *out_ << "</div>";
    plot_.open(label, 1000, 10 * stages);
    *out_ << "<path class=\"area c9\" d=\"";
    for (std::size_t stage = 0; stage < stages; ++stage) {
      double end = begin;
      for (const report_action& each : actions)
        if (each.stage == stage) end = greater_of(end, each.end);
      box(0, (end - begin) / length, stage);
    }
    *out_ << "\"/>";
    for (const shown_kind& kind : shown_kinds) {
      for (const bool later : {false, true}) {
        const auto shows = [&](const report_action& each) {
          return each.what == kind.what && (each.chunk > 0) == later;
        };
        if (std::ranges::none_of(actions, shows)) continue;
        *out_ << "<path class=\"action c" << kind.colour << (later ? " later" : "") << "\" d=\"";
        for (const report_action& each : actions)
          if (shows(each)) box((each.begin - begin) / length, (each.end - begin) / length, each.stage);
        *out_ << "\"/>";
      }
    }
    *out_ << "</svg>";
    if (time == scale::below) times(length);
    *out_ << "</div>";
  }
  void times(double length) {
    const page_axis axis = page_axis::around(0, length, page_unit::number);
    *out_ << "<div class=\"x\">";
    for (int i = 0; i < axis.ticks() && axis.tick(i) <= length; ++i) {
      plot_.label(axis.tick(i) / length, i % 2 == 1);
      out_->seconds(axis.tick(i)) << "</span>";
    }
    *out_ << "</div>";
  }
  void box(double from, double to, std::size_t stage) {
    const double left = std::clamp(from, 0.0, 1.0) * 1000, right = std::clamp(to, 0.0, 1.0) * 1000;
    *out_ << "M";
    out_->place(left) << " " << 10 * stage << ".8H";
    out_->place(right) << "v8.4H";
    out_->place(left) << "Z";
  }

  // A value holds until the next action.
  template <class Upper, class Lower>
  void stairs(std::size_t colour, std::size_t moments, Upper&& upper, Lower&& lower) {
    const auto at = [&](std::size_t i) { return of(i) / of(moments); };
    *out_ << "<path class=\"area c" << colour << "\" d=\"M";
    for (std::size_t i = 0; i < moments; ++i) {
      plot_.point(at(i), upper(i));
      plot_.point(at(i + 1), upper(i));
    }
    for (std::size_t i = moments; i-- > 0;) {
      plot_.point(at(i + 1), lower(i));
      plot_.point(at(i), lower(i));
    }
    *out_ << "Z\"/>";
  }

  page_markup* out_;
  page_plot plot_;
  std::array<std::size_t, tier_colours::most> rows_{}, colours_{};  // of the memory picture
  std::size_t chosen_ = 0;
};

}  // namespace belay::inline BELAY_ABI
