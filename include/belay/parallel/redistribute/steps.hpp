// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// From one list of placements to another: which collective each axis takes, and in which order. Known when the program
// is compiled.
// IWYU pragma: private, include "belay/parallel/redistribute.hpp"
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include "belay/comm/axis.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/parallel/placement.hpp"

namespace belay::inline BELAY_ABI {

/// Entries of a placement that are not `replicate`, and that change from step to step.
class placement_list {
 public:
  static constexpr std::size_t most = all_axes.size();

  constexpr placement_list() = default;
  explicit constexpr placement_list(std::span<const placement_entry> entries) noexcept {
    for (const placement_entry& each : entries)
      if (each.how != placement_entry::kind::replicate) add(each);
  }

  [[nodiscard]] constexpr std::span<const placement_entry> entries() const noexcept {
    return {entries_.data(), count_};
  }
  [[nodiscard]] constexpr std::optional<placement_entry> find(axis over) const noexcept {
    for (std::size_t i = 0; i < count_; ++i)
      if (entries_[i].over == over) return entries_[i];
    return std::nullopt;
  }
  [[nodiscard]] constexpr bool has(placement_entry entry) const noexcept { return find(entry.over) == entry; }
  constexpr void add(placement_entry entry) noexcept { entries_[count_++] = entry; }
  constexpr void remove(axis over) noexcept {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < count_; ++i)
      if (entries_[i].over != over) entries_[kept++] = entries_[i];
    count_ = kept;
  }
  /// How many entries of `other` cut dimension `dimension` by the same axes in the same order, before one differs.
  [[nodiscard]] constexpr std::size_t common_cuts(const placement_list& other, std::size_t dimension) const noexcept {
    std::size_t count = 0;
    while (cut(dimension, count) && cut(dimension, count) == other.cut(dimension, count)) ++count;
    return count;
  }
  /// The `number`-th axis that cuts a dimension.
  [[nodiscard]] constexpr std::optional<placement_entry> cut(std::size_t dimension, std::size_t number) const noexcept {
    for (std::size_t i = 0; i < count_; ++i)
      if (entries_[i].cuts() && entries_[i].dimension == dimension && number-- == 0) return entries_[i];
    return std::nullopt;
  }
  /// The place of an entry among those that cut its dimension.
  [[nodiscard]] constexpr std::size_t order_of(placement_entry entry) const noexcept {
    std::size_t number = 0;
    while (cut(entry.dimension, number) != entry) ++number;
    return number;
  }

 private:
  std::array<placement_entry, most> entries_{};
  std::size_t count_ = 0;
};

/// One collective over one axis, or a copy of what a rank has.
struct redistribution_step {
  enum class kind : std::uint8_t { reduce, reduce_scatter, gather, slice };

  kind what = kind::slice;
  axis over = axis::data;
  std::size_t dimension = 0;  // that is cut, or no longer
  placement_list after;
};

/// The steps between two lists. Reductions come first, then gathers, the innermost cut of a dimension before others,
/// then local slices.
class redistribution_steps {
 public:
  constexpr redistribution_steps(const placement_list& from, const placement_list& to) noexcept : now_(from) {
    using kind = placement_entry::kind;
    const auto all = from.entries();
    for (std::size_t i = all.size(); i-- > 0;)
      if (all[i].how == kind::partial && !to.has(all[i])) reduce(all[i], from, to);
    for (std::size_t i = all.size(); i-- > 0;) {
      if (!all[i].cuts() || from.order_of(all[i]) < from.common_cuts(to, all[i].dimension)) continue;
      now_.remove(all[i].over);
      add({redistribution_step::kind::gather, all[i].over, all[i].dimension, now_});
    }
    for (const placement_entry& each : to.entries()) {
      if (!each.cuts() || now_.has(each)) continue;
      now_.add(each);
      add({redistribution_step::kind::slice, each.over, each.dimension, now_});
    }
  }

  [[nodiscard]] constexpr std::size_t size() const noexcept { return count_; }
  [[nodiscard]] constexpr const redistribution_step& operator[](std::size_t i) const noexcept { return steps_[i]; }
  [[nodiscard]] constexpr bool has(redistribution_step::kind what) const noexcept {
    for (std::size_t i = 0; i < count_; ++i)
      if (steps_[i].what == what) return true;
    return false;
  }

 private:
  // Scatters what it reduces where the axis is the next that cuts a dimension of the result.
  constexpr void reduce(placement_entry entry, const placement_list& from, const placement_list& to) noexcept {
    now_.remove(entry.over);
    const std::optional<placement_entry> cut = to.find(entry.over);
    if (cut && cut->cuts()) {
      const std::size_t before = to.order_of(*cut);
      const bool stays = !from.cut(cut->dimension, from.common_cuts(to, cut->dimension));
      if (stays && now_.common_cuts(to, cut->dimension) == before) {
        now_.add(*cut);
        return add({redistribution_step::kind::reduce_scatter, cut->over, cut->dimension, now_});
      }
    }
    add({redistribution_step::kind::reduce, entry.over, 0, now_});
  }
  constexpr void add(const redistribution_step& step) noexcept { steps_[count_++] = step; }

  std::array<redistribution_step, 2 * placement_list::most> steps_{};
  std::size_t count_ = 0;
  placement_list now_;
};

template <placement From, placement To>
inline constexpr redistribution_steps steps_between{placement_list(entries_of<From>), placement_list(entries_of<To>)};

/// Whether no axis has to gather what it cuts and then cut it otherwise.
template <placement From, placement To>
[[nodiscard]] constexpr bool cuts_once() noexcept {
  const placement_list from(entries_of<From>);
  const auto& steps = steps_between<From, To>;
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (steps[i].what == redistribution_step::kind::slice) {
      const std::optional<placement_entry> before = from.find(steps[i].over);
      if (before && before->cuts()) return false;
    }
  return true;
}
/// Whether every partial of `To` is one of `From`.
template <placement From, placement To>
[[nodiscard]] constexpr bool keeps_partials() noexcept {
  const placement_list from(entries_of<From>);
  for (const placement_entry& each : entries_of<To>)
    if (each.how == placement_entry::kind::partial && !from.has(each)) return false;
  return true;
}
/// Whether every partial of `From` has a reduction whose result does not depend on the order of its operands.
template <class T, placement From>
[[nodiscard]] constexpr bool orders_do_not_matter() noexcept {
  for (const placement_entry& each : entries_of<From>) {
    const auto code = static_cast<reduction>(each.operation);
    if (each.how == placement_entry::kind::partial && !std::is_integral_v<T> && code != reduction::minimum &&
        code != reduction::maximum)
      return false;
  }
  return true;
}
/// The reduction of the partial over `Axis`.
template <axis Axis, auto Op, axis Over>
[[nodiscard]] constexpr auto operation_over(partial<Op, Over>) noexcept {
  return Op;
}
template <axis Axis, class First, class... Rest>
[[nodiscard]] constexpr auto operation_over(placed<First, Rest...>) noexcept {
  constexpr bool is_it = is_partial<First> && entry_of<First>().over == Axis;
  if constexpr (is_it)
    return operation_over<Axis>(First{});
  else
    return operation_over<Axis>(placed<Rest...>{});
}

}  // namespace belay::inline BELAY_ABI
