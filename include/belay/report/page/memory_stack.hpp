// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Bytes of a tier over a run, stacked by purpose: the stack is what was leased, the lines are the most at once so far
// and the plan.
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
#include "belay/report/page/sample.hpp"

namespace belay::inline BELAY_ABI {

class memory_stack {
 public:
  static constexpr std::size_t most_colours = tier_colours::most;  // then the rest
  static constexpr std::size_t rest_colour = tier_colours::rest;

  memory_stack(page_markup& out, const report_subject& subject, const report_history& history) noexcept
      : out_(&out), subject_(&subject), history_(&history), plot_(out) {}

  /// Tier `number` of the subject. Nothing where it was never used.
  void draw(std::size_t number, const report_tier_rows& tier) {
    if (number >= report_history::most_tiers || (history_->peak(number) == 0 && tier.planned == 0)) return;
    choose(tier);
    sum_.fill(0);
    const std::uint64_t planned = greater_of(history_->planned(number), tier.planned);
    const auto top = static_cast<double>(greater_of(history_->peak(number), planned));
    const page_axis axis = page_axis::around(0, top, page_unit::bytes);
    plot_.caption(tier.tier, "after each step");
    for (std::size_t i = 0; i < chosen_; ++i) {
      const std::size_t row = tier.first + rows_[i];
      plot_.key(colours_[i], subject_->memory[row].purpose, "key area").bytes(last(history_->row_bytes(row)), 3)
          << "</span>";
    }
    const auto all = history_->bytes(number);
    const bool rest = has_rest(all, tier);
    if (rest)
      plot_.key(rest_colour, chosen_ == 0 ? "leased" : "other", "key area").bytes(rest_of(all, all.size() - 1, tier), 3)
          << "</span>";
    plot_.key(8, "most at once").bytes(static_cast<double>(history_->peak(number)), 3) << "</span>";
    if (planned > 0) plot_.key(8, "planned", "key dashed").bytes(static_cast<double>(planned), 3) << "</span>";
    plot_.end_caption();
    plot_.begin(tier.tier, axis);
    for (std::size_t i = 0; i < chosen_; ++i) {
      const auto row = history_->row_bytes(tier.first + rows_[i]);
      area(all, colours_[i], axis, [&](std::size_t bucket) { return sum_[bucket] + static_cast<double>(row[bucket]); });
    }
    if (rest)
      area(all, rest_colour, axis,
           [&](std::size_t bucket) { return greater_of(sum_[bucket], static_cast<double>(all[bucket].live)); });
    lines(all, tier, axis);
    plot_.end(history_->buckets());
  }

 private:
  // The largest purposes of the plan, in its order.
  void choose(const report_tier_rows& tier) {
    chosen_ = 0;
    const tier_colours colours(*subject_);
    for (std::size_t row = 0; row < tier.count && tier.first + row < report_history::most_rows; ++row) {
      const auto ever = history_->row_bytes(tier.first + row);
      const std::size_t colour = colours.of(tier.first + row);
      if (colour == tier_colours::none ||
          std::none_of(ever.begin(), ever.end(), [](std::uint64_t bytes) { return bytes > 0; }))
        continue;
      colours_[chosen_] = colour;
      rows_[chosen_++] = row;
    }
  }

  [[nodiscard]] static double last(std::span<const std::uint64_t> bytes) noexcept {
    return bytes.empty() ? 0 : static_cast<double>(bytes.back());
  }
  // Bytes of a bucket that are of no purpose with a colour.
  [[nodiscard]] double rest_of(std::span<const report_tier> all, std::size_t bucket,
                               const report_tier_rows& tier) const noexcept {
    if (bucket >= all.size()) return 0;
    auto rest = static_cast<double>(all[bucket].live);
    for (std::size_t i = 0; i < chosen_; ++i)
      rest -= static_cast<double>(history_->row_bytes(tier.first + rows_[i])[bucket]);
    return greater_of(rest, 0.0);
  }
  [[nodiscard]] bool has_rest(std::span<const report_tier> all, const report_tier_rows& tier) const noexcept {
    for (std::size_t bucket = 0; bucket < all.size(); ++bucket)
      if (rest_of(all, bucket, tier) > 0) return true;
    return false;
  }
  [[nodiscard]] static bool sampled(const report_tier& bytes) noexcept { return bytes.live > 0 || bytes.peak > 0; }

  // From the stack so far up to `top(bucket)`, which is the stack then. A single step is as wide as the picture.
  template <class Top>
  void area(std::span<const report_tier> all, std::size_t colour, const page_axis& axis, Top&& top) {
    const auto many = std::count_if(all.begin(), all.end(), sampled);
    if (many == 0) return;
    const auto each = [&](std::size_t bucket, double value) {
      if (many > 1) return plot_.point(history_->buckets().position(bucket), axis.share(value));
      plot_.point(0, axis.share(value));
      plot_.point(1, axis.share(value));
    };
    *out_ << "<path class=\"area c" << colour << "\" d=\"M";
    for (std::size_t bucket = 0; bucket < all.size(); ++bucket)
      if (sampled(all[bucket])) each(bucket, top(bucket));
    for (std::size_t bucket = all.size(); bucket-- > 0;) {
      if (!sampled(all[bucket])) continue;
      if (many > 1) {
        each(bucket, sum_[bucket]);
      } else {
        plot_.point(1, axis.share(sum_[bucket]));
        plot_.point(0, axis.share(sum_[bucket]));
      }
      sum_[bucket] = top(bucket);
    }
    *out_ << "Z\"/>";
  }

  // The most at once so far, and the plan, which grows where a step was replayed.
  void lines(std::span<const report_tier> all, const report_tier_rows& tier, const page_axis& axis) {
    const bool any_plan = tier.planned > 0 ||
                          std::any_of(all.begin(), all.end(), [](const report_tier& each) { return each.planned > 0; });
    std::uint64_t peak = 0;
    line(all, "line c8", axis, [&](const report_tier& bytes) { return peak = greater_of(peak, bytes.peak); });
    if (!any_plan) return;
    line(all, "line dashed c8", axis,
         [&](const report_tier& bytes) { return bytes.planned > 0 ? bytes.planned : tier.planned; });
  }
  template <class Value>
  void line(std::span<const report_tier> all, std::string_view kind, const page_axis& axis, Value&& value) {
    const bool single = std::count_if(all.begin(), all.end(), sampled) == 1;
    *out_ << "<path class=\"" << kind << "\" d=\"M";
    for (std::size_t bucket = 0; bucket < all.size(); ++bucket) {
      if (!sampled(all[bucket])) continue;
      const auto here = static_cast<double>(value(all[bucket]));
      plot_.point(single ? 0 : history_->buckets().position(bucket), axis.share(here));
      if (single) plot_.point(1, axis.share(here));
    }
    *out_ << "\"/>";
  }

  page_markup* out_;
  const report_subject* subject_;
  const report_history* history_;
  page_plot plot_;
  std::array<std::size_t, most_colours> rows_{}, colours_{};
  std::size_t chosen_ = 0;
  std::array<double, report_history::most_points> sum_{};
};

}  // namespace belay::inline BELAY_ABI
