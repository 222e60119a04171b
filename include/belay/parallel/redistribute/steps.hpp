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
      if (each.how != placement_entry::placement_kind::replicate) add(each);
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
  enum class move_type : std::uint8_t { reduce, reduce_scatter, exchange, gather, slice };

  move_type what = move_type::slice;
  axis over = axis::data;
  std::size_t dimension = 0;  // that is cut, or no longer
  placement_list after;
  std::size_t into = 0;  // of an exchange: the dimension that is cut from here on
};

/// The steps between two lists. Reductions come first. Then cuts are taken away, the innermost of a dimension before
/// others: an axis that cuts another dimension of the result exchanges boxes, the others gather. Local slices are last.
/// An axis gathers and is sliced again where it would be exchanged into a dimension that others must leave first, while
/// they wait for it: `[0 by A, 1 by B]` to `[1 by A, 0 by B]`.
class redistribution_steps {
 public:
  constexpr redistribution_steps(const placement_list& from, const placement_list& to) noexcept : now_(from) {
    using placement_kind = placement_entry::placement_kind;
    const auto all = from.entries();
    for (std::size_t i = all.size(); i-- > 0;)
      if (all[i].how == placement_kind::partial && !to.has(all[i])) reduce(all[i], from, to);
    while (const auto next = next_to_leave(to)) {
      const std::optional<placement_entry> target = to.find(next->over);
      const bool moves = exchanges(*next, to);
      now_.remove(next->over);
      if (moves) now_.add(*target);
      add({moves ? redistribution_step::move_type::exchange : redistribution_step::move_type::gather, next->over,
           next->dimension, now_, moves ? target->dimension : 0});
    }
    for (const placement_entry& each : to.entries()) {
      if (!each.cuts() || now_.has(each)) continue;
      now_.add(each);
      add({redistribution_step::move_type::slice, each.over, each.dimension, now_});
    }
  }

  [[nodiscard]] constexpr std::size_t size() const noexcept { return count_; }
  [[nodiscard]] constexpr const redistribution_step& operator[](std::size_t i) const noexcept { return steps_[i]; }
  [[nodiscard]] constexpr bool has(redistribution_step::move_type what) const noexcept {
    for (std::size_t i = 0; i < count_; ++i)
      if (steps_[i].what == what) return true;
    return false;
  }

 private:
  // Of the cuts that the result does not have and that are the innermost of their dimension: one that can be exchanged,
  // else one whose axis cuts nothing then, else any. The last in the list first.
  [[nodiscard]] constexpr std::optional<placement_entry> next_to_leave(const placement_list& to) const noexcept {
    const auto all = now_.entries();
    std::optional<placement_entry> out;
    int best = 0;
    for (std::size_t i = all.size(); i-- > 0;) {
      if (!all[i].cuts()) continue;
      const std::size_t order = now_.order_of(all[i]);
      if (order < now_.common_cuts(to, all[i].dimension) || now_.cut(all[i].dimension, order + 1)) continue;
      const std::optional<placement_entry> target = to.find(all[i].over);
      const int rank = exchanges(all[i], to) ? 3 : target && target->cuts() ? 1 : 2;
      if (rank <= best) continue;
      best = rank;
      out = all[i];
    }
    return out;
  }
  // Whether the axis of `entry` is the next that cuts a dimension of the result, where nothing else does.
  [[nodiscard]] constexpr bool exchanges(placement_entry entry, const placement_list& to) const noexcept {
    const std::optional<placement_entry> target = to.find(entry.over);
    if (!target || !target->cuts() || target->dimension == entry.dimension) return false;
    const std::size_t before = to.order_of(*target);
    return now_.common_cuts(to, target->dimension) == before && !now_.cut(target->dimension, before);
  }
  // Scatters what it reduces where the axis is the next that cuts a dimension of the result.
  constexpr void reduce(placement_entry entry, const placement_list& from, const placement_list& to) noexcept {
    now_.remove(entry.over);
    const std::optional<placement_entry> cut = to.find(entry.over);
    if (cut && cut->cuts()) {
      const std::size_t before = to.order_of(*cut);
      const bool stays = !from.cut(cut->dimension, from.common_cuts(to, cut->dimension));
      if (stays && now_.common_cuts(to, cut->dimension) == before) {
        now_.add(*cut);
        return add({redistribution_step::move_type::reduce_scatter, cut->over, cut->dimension, now_});
      }
    }
    add({redistribution_step::move_type::reduce, entry.over, 0, now_});
  }
  constexpr void add(const redistribution_step& step) noexcept { steps_[count_++] = step; }

  std::array<redistribution_step, 2 * placement_list::most> steps_{};
  std::size_t count_ = 0;
  placement_list now_;
};

template <placement From, placement To>
inline constexpr redistribution_steps steps_between{placement_list(entries_of<From>), placement_list(entries_of<To>)};

/// Whether every partial of `To` is one of `From`.
template <placement From, placement To>
[[nodiscard]] constexpr bool keeps_partials() noexcept {
  const placement_list from(entries_of<From>);
  for (const placement_entry& each : entries_of<To>)
    if (each.how == placement_entry::placement_kind::partial && !from.has(each)) return false;
  return true;
}
/// Whether every partial of `From` has a reduction whose result does not depend on the order of its operands.
template <class T, placement From>
[[nodiscard]] constexpr bool orders_do_not_matter() noexcept {
  for (const placement_entry& each : entries_of<From>) {
    const auto code = static_cast<reduction>(each.operation);
    if (each.how == placement_entry::placement_kind::partial && !std::is_integral_v<T> && code != reduction::minimum &&
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
