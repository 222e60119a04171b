// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What ranks have waited for each other in the communications of the last step, and who came last: a group of bars for
// each kind of communication.
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
#include "belay/report/page/markup.hpp"
#include "belay/report/page/room.hpp"
#include "belay/report/page/sample.hpp"

namespace belay::inline BELAY_ABI {

/// A copy of the waits of the last step that has some: of the kinds of communication with most waiting.
class rank_waits {
 public:
  static constexpr std::size_t most_kinds = 8;

  [[nodiscard]] static constexpr std::size_t room_bytes(std::size_t ranks) noexcept {
    return report_room::bytes<double>(most_kinds * ranks) + report_room::bytes<double>(ranks);
  }
  rank_waits(std::size_t ranks, report_room& room)
      : ranks_(ranks), seconds_(room.take<double>(most_kinds * ranks)), sorted_(room.take<double>(ranks)) {}

  void keep(std::uint64_t step, std::span<const report_wait> waits) noexcept {
    if (waits.empty()) return;
    step_ = step;
    count_ = 0;
    for (const report_wait& each : waits) {
      if (each.seconds.size() != ranks_ || count_ == most_kinds) continue;
      kinds_[count_] = each;
      std::copy(each.seconds.begin(), each.seconds.end(),
                seconds_.begin() + static_cast<std::ptrdiff_t>(count_ * ranks_));
      kinds_[count_].seconds = seconds_.subspan(count_ * ranks_, ranks_);
      ++count_;
    }
  }
  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }
  [[nodiscard]] std::span<const report_wait> kinds() const noexcept { return {kinds_.data(), count_}; }
  /// Those of one kind, least first. Valid until the next call.
  [[nodiscard]] std::span<const double> sorted(const report_wait& of) const noexcept {
    std::copy(of.seconds.begin(), of.seconds.end(), sorted_.begin());
    std::sort(sorted_.begin(), sorted_.end());
    return sorted_;
  }

 private:
  std::size_t ranks_;
  std::span<double> seconds_;  // [kind][rank]
  std::span<double> sorted_;
  std::array<report_wait, most_kinds> kinds_{};
  std::size_t count_ = 0;
  std::uint64_t step_ = 0;
};

class wait_bars {
 public:
  static constexpr std::size_t most_ranks = 16;  // each with a bar of its own

  explicit wait_bars(page_markup& out) noexcept : out_(&out) {}

  void draw(const rank_waits& waits) {
    double most = 0;
    for (const report_wait& each : waits.kinds())
      for (double seconds : each.seconds) most = greater_of(most, seconds);
    if (!(most > 0)) return;
    *out_ << "<section><h2>Waiting for the last rank, step " << waits.step()
          << "</h2>\n<p class=\"note\">From a rank's arrival at a communication to that of the last one, spinning "
             "included.</p>"
          << "<div class=\"two\">\n";
    for (const report_wait& each : waits.kinds()) {
      (*out_ << "<figure><figcaption><b>").text(each.operation, 40)
          << "</b> <small>" << each.calls << (each.calls == 1 ? " call" : " calls");
      if (each.last_calls > 0)
        *out_ << "; rank " << each.last_rank << " came last in " << each.last_calls << ", and the others waited ";
      if (each.last_calls > 0) out_->seconds(each.last_seconds);
      *out_ << "</small></figcaption>\n<div class=\"bars\">";
      if (each.seconds.size() <= most_ranks) {
        for (std::size_t rank = 0; rank < each.seconds.size(); ++rank) bar(rank, each.seconds[rank], most);
      } else {
        const auto sorted = waits.sorted(each);
        bar("least", sorted.front(), most);
        bar("median", sorted[sorted.size() / 2], most);
        bar("most", sorted.back(), most);
        slowest(each, most);
      }
      *out_ << "</div></figure>\n";
    }
    *out_ << "</div></section>\n";
  }

 private:
  // The four that wait least are those that others wait for.
  void slowest(const report_wait& of, double most) {
    std::array<std::size_t, 4> shown{};
    for (std::size_t place = 0; place < shown.size(); ++place) {
      std::size_t best = of.seconds.size();
      for (std::size_t rank = 0; rank < of.seconds.size(); ++rank) {
        if (std::find(shown.begin(), shown.begin() + static_cast<std::ptrdiff_t>(place), rank) !=
            shown.begin() + static_cast<std::ptrdiff_t>(place))
          continue;
        if (best == of.seconds.size() || of.seconds[rank] < of.seconds[best]) best = rank;
      }
      shown[place] = best;
      bar(best, of.seconds[best], most);
    }
  }
  void bar(std::size_t rank, double seconds, double most) {
    *out_ << "<span>rank " << rank << "</span>";
    bar_itself(seconds, most);
  }
  void bar(std::string_view label, double seconds, double most) {
    *out_ << "<span>" << label << "</span>";
    bar_itself(seconds, most);
  }
  void bar_itself(double seconds, double most) {
    *out_ << "<div><i style=\"width:";
    out_->place(100 * std::clamp(seconds / most, 0.0, 1.0)) << "%\"></i></div><span class=\"n\">";
    out_->seconds(seconds) << "</span>";
  }

  page_markup* out_;
};

}  // namespace belay::inline BELAY_ABI
