// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The steps of a run in memory of fixed size: curves, bytes and marks, in at most 1,000 buckets. A bucket of several
// steps has their mean, least and most, so that no peak is lost.
// IWYU pragma: private, include "belay/report/page.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/finite.hpp"
#include "belay/report/page/room.hpp"
#include "belay/report/page/sample.hpp"

namespace belay::inline BELAY_ABI {

class report_history {
 public:
  static constexpr std::size_t most_points = 1000;  // of a curve; its band of least and most has twice as many
  static constexpr std::size_t most_rows = 64;      // of memory; what is beyond is in the tier's bytes alone
  static constexpr std::size_t most_tiers = 4;

  struct point {
    double sum = 0;
    double least = 0;
    double most = 0;
    std::uint64_t count = 0;

    [[nodiscard]] double mean() const noexcept { return sum / static_cast<double>(count); }
    void add(const point& other) noexcept {
      if (other.count == 0) return;
      least = count == 0 ? other.least : lesser_of(least, other.least);
      most = count == 0 ? other.most : greater_of(most, other.most);
      sum += other.sum;
      count += other.count;
    }
  };

  [[nodiscard]] static constexpr std::size_t room_bytes() noexcept {
    return report_room::bytes<point>(report_curve_count * most_points) +
           report_room::bytes<report_tier>(most_tiers * most_points) +
           report_room::bytes<std::uint64_t>(most_rows * most_points) +
           report_room::bytes<std::uint32_t>(report_mark_count * most_points);
  }

  explicit report_history(report_room& room)
      : buckets_(most_points),
        curves_(room.take<point>(report_curve_count * most_points)),
        tiers_(room.take<report_tier>(most_tiers * most_points)),
        rows_(room.take<std::uint64_t>(most_rows * most_points)),
        marks_(room.take<std::uint32_t>(report_mark_count * most_points)) {}

  /// A value that is no finite number is left out.
  void add(report_curve curve, std::uint64_t step, double value) noexcept {
    if (!is_finite(value)) return;
    const std::size_t bucket = place(step);
    if (bucket == most_points) return;
    trained_ = greater_of(trained_, step);
    of(curve)[bucket].add({value, value, value, 1});
    last_[static_cast<std::size_t>(curve)] = value;
    known_[static_cast<std::size_t>(curve)] = current_[static_cast<std::size_t>(curve)] = true;
  }

  void add(report_mark mark, std::uint64_t step, std::uint64_t count) noexcept {
    if (count == 0) return;
    const std::size_t bucket = place(step);
    if (bucket == most_points) return;
    if (mark != report_mark::refusal) trained_ = greater_of(trained_, step);
    of(mark)[bucket] += static_cast<std::uint32_t>(lesser_of<std::uint64_t>(count, 1U << 20U));
    totals_[static_cast<std::size_t>(mark)] += count;
  }

  /// The run goes on from what has been added: what it measures no more is not current.
  void begin_again() noexcept {
    std::fill_n(current_, report_curve_count, false);
    std::fill_n(current_peaks_, most_tiers, std::uint64_t{0});
    std::fill_n(current_most_, most_tiers, std::uint64_t{0});
  }

  /// Bytes of tier `number` of the subject, and of its rows from `first` on. A bucket keeps the step with most.
  void add_bytes(std::uint64_t step, std::size_t number, const report_tier& bytes, std::size_t first,
                 std::span<const std::uint64_t> rows) noexcept {
    if (number >= most_tiers) return;
    const std::size_t bucket = place(step);
    if (bucket == most_points) return;
    report_tier& kept = tier(number)[bucket];
    kept.peak = greater_of(kept.peak, bytes.peak);
    kept.planned = greater_of(kept.planned, bytes.planned);
    planned_[number] = greater_of(planned_[number], bytes.planned);
    peaks_[number] = greater_of(peaks_[number], bytes.peak);
    current_peaks_[number] = greater_of(current_peaks_[number], bytes.peak);
    current_most_[number] = greater_of(current_most_[number], bytes.most);
    trained_ = greater_of(trained_, step);
    if (bytes.live < kept.live) return;
    kept.live = bytes.live;
    for (std::size_t i = 0; i < rows.size() && first + i < most_rows; ++i) {
      row(first + i)[bucket] = rows[i];
      tier_of_[first + i] = number;
    }
  }

  [[nodiscard]] const step_buckets& buckets() const noexcept { return buckets_; }
  /// The last step that was committed; 0: none was. A refused one has its mark and no more.
  [[nodiscard]] std::uint64_t trained() const noexcept { return trained_; }
  [[nodiscard]] bool has(report_curve curve) const noexcept { return known_[static_cast<std::size_t>(curve)]; }
  /// Whether `last` is of the run as it goes on now, and of none before it.
  [[nodiscard]] bool current(report_curve curve) const noexcept { return current_[static_cast<std::size_t>(curve)]; }
  [[nodiscard]] double last(report_curve curve) const noexcept { return last_[static_cast<std::size_t>(curve)]; }
  [[nodiscard]] std::span<const point> points(report_curve curve) const noexcept {
    return of(curve).first(buckets_.used());
  }
  [[nodiscard]] std::uint64_t total(report_mark mark) const noexcept { return totals_[static_cast<std::size_t>(mark)]; }
  [[nodiscard]] std::span<const std::uint32_t> marks(report_mark mark) const noexcept {
    return of(mark).first(buckets_.used());
  }
  [[nodiscard]] std::uint64_t peak(std::size_t number) const noexcept { return peaks_[number]; }
  [[nodiscard]] std::uint64_t current_peak(std::size_t number) const noexcept { return current_peaks_[number]; }
  /// The largest peak of any rank; 0: not known.
  [[nodiscard]] std::uint64_t current_most(std::size_t number) const noexcept { return current_most_[number]; }
  [[nodiscard]] std::uint64_t planned(std::size_t number) const noexcept { return planned_[number]; }
  [[nodiscard]] std::span<const report_tier> bytes(std::size_t number) const noexcept {
    return tier(number).first(buckets_.used());
  }
  [[nodiscard]] std::span<const std::uint64_t> row_bytes(std::size_t number) const noexcept {
    return row(number).first(buckets_.used());
  }

 private:
  [[nodiscard]] std::size_t place(std::uint64_t step) noexcept {
    return buckets_.place(step, [this] { halve(); });
  }

  [[nodiscard]] std::span<point> of(report_curve curve) const noexcept {
    return curves_.subspan(static_cast<std::size_t>(curve) * most_points, most_points);
  }
  [[nodiscard]] std::span<std::uint32_t> of(report_mark mark) const noexcept {
    return marks_.subspan(static_cast<std::size_t>(mark) * most_points, most_points);
  }
  [[nodiscard]] std::span<report_tier> tier(std::size_t number) const noexcept {
    return tiers_.subspan(number * most_points, most_points);
  }
  [[nodiscard]] std::span<std::uint64_t> row(std::size_t number) const noexcept {
    return rows_.subspan(number * most_points, most_points);
  }

  void halve() noexcept {
    for (std::size_t curve = 0; curve < report_curve_count; ++curve)
      fold(of(static_cast<report_curve>(curve)), [](point& into, const point& other) { into.add(other); });
    for (std::size_t mark = 0; mark < report_mark_count; ++mark)
      fold(of(static_cast<report_mark>(mark)), [](std::uint32_t& into, std::uint32_t other) { into += other; });
    // The rows of a tier are those of the step that it keeps: they add up to its bytes.
    for (std::size_t number = 0; number < most_rows; ++number) {
      const std::span<const report_tier> bytes = tier(tier_of_[number]);
      const std::span<std::uint64_t> kept = row(number);
      for (std::size_t i = 0; i < most_points / 2; ++i)
        kept[i] = kept[bytes[2 * i + 1].live >= bytes[2 * i].live ? 2 * i + 1 : 2 * i];
      std::fill(kept.begin() + most_points / 2, kept.end(), std::uint64_t{0});
    }
    for (std::size_t number = 0; number < most_tiers; ++number)
      fold(tier(number), [](report_tier& into, const report_tier& other) {
        into = {greater_of(into.live, other.live), greater_of(into.peak, other.peak),
                greater_of(into.planned, other.planned)};
      });
  }
  template <class T, class Fold>
  static void fold(std::span<T> all, Fold&& into) noexcept {
    for (std::size_t i = 0; i < most_points / 2; ++i) {
      T folded = all[2 * i];
      into(folded, all[2 * i + 1]);
      all[i] = folded;
    }
    std::fill(all.begin() + most_points / 2, all.end(), T{});
  }

  step_buckets buckets_;
  std::uint64_t trained_ = 0;
  std::span<point> curves_;         // [curve][bucket]
  std::span<report_tier> tiers_;    // [tier][bucket]
  std::span<std::uint64_t> rows_;   // [row][bucket]
  std::span<std::uint32_t> marks_;  // [mark][bucket]
  double last_[report_curve_count] = {};
  bool known_[report_curve_count] = {};
  bool current_[report_curve_count] = {};
  std::uint64_t totals_[report_mark_count] = {};
  std::uint64_t peaks_[most_tiers] = {};
  std::uint64_t current_peaks_[most_tiers] = {};
  std::uint64_t current_most_[most_tiers] = {};
  std::uint64_t planned_[most_tiers] = {};  // the largest
  std::size_t tier_of_[most_rows] = {};
};

}  // namespace belay::inline BELAY_ABI
