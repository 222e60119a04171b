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

  [[nodiscard]] static constexpr std::size_t room_bytes() noexcept {
    return 2 * report_room::bytes<report_action>(most) + report_room::bytes<report_moment>(most) +
           report_room::bytes<std::uint64_t>(report_history::most_rows);
  }
  explicit last_step(report_room& room)
      : executed_(room.take<report_action>(most)),
        planned_(room.take<report_action>(most)),
        moments_(room.take<report_moment>(most)),
        live_(room.take<std::uint64_t>(report_history::most_rows)) {}

  void keep(const report_sample& sample) noexcept {
    step_ = sample.step;
    executed_count_ = copy(sample.executed, executed_);
    planned_count_ = copy(sample.planned, planned_);
    moment_count_ = copy(sample.moments, moments_);
    row_count_ = copy(sample.live, live_);
    bytes_ = sample.tiers.empty() ? report_tier{} : sample.tiers.front();
  }

  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }
  [[nodiscard]] std::span<const report_action> executed() const noexcept { return executed_.first(executed_count_); }
  [[nodiscard]] std::span<const report_action> planned() const noexcept { return planned_.first(planned_count_); }
  [[nodiscard]] std::span<const report_moment> moments() const noexcept { return moments_.first(moment_count_); }
  /// Of the first tier after the step: what lasts, and the plan.
  [[nodiscard]] const report_tier& bytes() const noexcept { return bytes_; }
  /// The same by rows of the subject's memory, of which the first are known.
  [[nodiscard]] std::uint64_t bytes(std::size_t row) const noexcept { return row < row_count_ ? live_[row] : 0; }

 private:
  template <class T>
  [[nodiscard]] static std::size_t copy(std::span<const T> from, std::span<T> to) noexcept {
    const std::size_t count = std::min(from.size(), to.size());
    std::copy_n(from.begin(), count, to.begin());
    return count;
  }

  std::span<report_action> executed_, planned_;
  std::span<report_moment> moments_;
  std::span<std::uint64_t> live_;
  std::size_t executed_count_ = 0, planned_count_ = 0, moment_count_ = 0, row_count_ = 0;
  std::uint64_t step_ = 0;
  report_tier bytes_;
};

class step_picture {
 public:
  explicit step_picture(page_markup& out) noexcept : out_(&out), plot_(out) {}

  /// Both schedules, a row a stage, from the same beginning and at the same scale.
  void schedules(const last_step& last) {
    if (last.executed().empty()) return;
    const double length = std::max(length_of(last.executed()), length_of(last.planned()));
    if (!(length > 0)) return;
    *out_ << "<figure><figcaption><b>Pipeline of step " << last.step()
          << "</b> <small>idle time is shaded</small><span class=\"key area c0\">forward</span>"
          << "<span class=\"key area c2\">backward</span><span class=\"key area c9\">idle</span></figcaption>\n"
          << "<div class=\"schedules\">";
    rows("executed", last.executed(), length);
    if (!last.planned().empty()) rows("planned", last.planned(), length);
    *out_ << "</div></figure>\n";
  }

  /// Bytes of the first tier after each action: what lasts, by purpose, and on it what the step needs.
  void memory(const last_step& last, const report_tier_rows& tier, const report_subject& subject) {
    const auto moments = last.moments();
    if (moments.size() < 2) return;
    const std::uint64_t planned = last.bytes().planned > 0 ? last.bytes().planned : tier.planned;
    std::uint64_t most = planned;
    for (const report_moment& each : moments) most = std::max(most, each.live);
    const page_axis axis = page_axis::around(0, static_cast<double>(most), page_unit::bytes);
    const auto lasting = static_cast<double>(last.bytes().live);
    plot_.caption(tier.tier, "over the last step's pipeline");
    choose(last, tier, subject);
    double itemised = 0;
    for (std::size_t i = 0; i < chosen_; ++i) {
      const double bytes = of(last.bytes(rows_[i]));
      plot_.key(i, subject.memory[rows_[i]].purpose, "key area").bytes(bytes, 3) << "</span>";
      itemised += bytes;
    }
    if (lasting > itemised)
      plot_.key(9, chosen_ == 0 ? "lasts" : "other", "key area").bytes(lasting - itemised, 3) << "</span>";
    plot_.key(step_colour, "of the step", "key area") << "</span>";
    if (planned > 0) plot_.key(8, "planned", "key dashed").bytes(static_cast<double>(planned), 3) << "</span>";
    plot_.end_caption();
    plot_.begin(tier.tier, axis);
    double below = 0;
    const auto layer = [&](std::size_t colour, double top) {
      stairs(
          colour, moments, [&](const report_moment& each) { return axis.share(std::min(top, of(each.live))); },
          [&](const report_moment& each) { return axis.share(std::min(below, of(each.live))); });
      below = top;
    };
    for (std::size_t i = 0; i < chosen_; ++i) layer(i, below + of(last.bytes(rows_[i])));
    if (lasting > below) layer(9, lasting);
    layer(step_colour, static_cast<double>(most));
    if (planned > 0) {
      *out_ << "<path class=\"line dashed c8\" d=\"M";
      plot_.point(0, axis.share(static_cast<double>(planned)));
      *out_ << "H1000\"/>";
    }
    plot_.end(1, moments.size(), "action ");
  }

  void open_obligations(const last_step& last) {
    const auto moments = last.moments();
    if (moments.size() < 2) return;
    std::uint64_t most = 0;
    for (const report_moment& each : moments) most = std::max(most, each.open);
    const page_axis axis = page_axis::around(0, static_cast<double>(most), page_unit::number);
    plot_.caption("Open obligations", "over the last step's pipeline");
    plot_.key(3, "at most") << most << "</span>";
    plot_.end_caption();
    plot_.begin("Open obligations", axis);
    stairs(
        3, moments, [&](const report_moment& each) { return axis.share(of(each.open)); },
        [](const report_moment&) { return 0.0; });
    plot_.end(1, moments.size(), "action ");
  }

 private:
  static constexpr std::size_t step_colour = 7;

  // The largest purposes of the plan, in its order and with the colours that they have over the run.
  void choose(const last_step& last, const report_tier_rows& tier, const report_subject& subject) noexcept {
    chosen_ = 0;
    for (std::size_t row = tier.first; row < tier.first + tier.count && chosen_ < rows_.size(); ++row) {
      std::size_t larger = 0;
      for (std::size_t other = tier.first; other < tier.first + tier.count; ++other)
        larger += subject.memory[other].planned > subject.memory[row].planned ||
                          (subject.memory[other].planned == subject.memory[row].planned && other < row)
                      ? 1
                      : 0;
      if (larger < rows_.size() && last.bytes(row) > 0) rows_[chosen_++] = row;
    }
  }
  [[nodiscard]] static double of(std::uint64_t number) noexcept { return static_cast<double>(number); }
  [[nodiscard]] static double begin_of(std::span<const report_action> actions) noexcept {
    double out = actions.empty() ? 0 : actions.front().begin;
    for (const report_action& each : actions) out = std::min(out, each.begin);
    return out;
  }
  [[nodiscard]] static double length_of(std::span<const report_action> actions) noexcept {
    double out = 0;
    for (const report_action& each : actions) out = std::max(out, each.end - begin_of(actions));
    return out;
  }

  void rows(std::string_view label, std::span<const report_action> actions, double length) {
    std::size_t stages = 0;
    for (const report_action& each : actions) stages = std::max(stages, each.stage + 1);
    const double begin = begin_of(actions);
    *out_ << "<span>" << label << "</span>";
    plot_.open(label, 1000, 10 * stages);
    *out_ << "<path class=\"area c9\" d=\"";
    for (std::size_t stage = 0; stage < stages; ++stage) {
      double end = begin;
      for (const report_action& each : actions)
        if (each.stage == stage) end = std::max(end, each.end);
      box(0, (end - begin) / length, stage);
    }
    *out_ << "\"/>";
    for (const auto kind : {report_action::kind::forward, report_action::kind::backward}) {
      *out_ << "<path class=\"action c" << (kind == report_action::kind::forward ? 0 : 2) << "\" d=\"";
      for (const report_action& each : actions)
        if (each.what == kind) box((each.begin - begin) / length, (each.end - begin) / length, each.stage);
      *out_ << "\"/>";
    }
    *out_ << "</svg>";
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
  void stairs(std::size_t colour, std::span<const report_moment> moments, Upper&& upper, Lower&& lower) {
    const auto width = static_cast<double>(moments.size());
    const auto at = [&](std::size_t i) { return static_cast<double>(i) / width; };
    *out_ << "<path class=\"area c" << colour << "\" d=\"M";
    for (std::size_t i = 0; i < moments.size(); ++i) {
      plot_.point(at(i), upper(moments[i]));
      plot_.point(at(i + 1), upper(moments[i]));
    }
    for (std::size_t i = moments.size(); i-- > 0;) {
      plot_.point(at(i + 1), lower(moments[i]));
      plot_.point(at(i), lower(moments[i]));
    }
    *out_ << "Z\"/>";
  }

  page_markup* out_;
  page_plot plot_;
  std::array<std::size_t, 7> rows_{};  // of the memory picture
  std::size_t chosen_ = 0;
};

}  // namespace belay::inline BELAY_ABI
