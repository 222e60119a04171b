// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The extents of a parameter.
// IWYU pragma: private, include "belay/parallel/parameter.hpp"
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <type_traits>

#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

class parameter_shape;

/// A range of integers that is no shape yet.
template <class Range>
concept lists_extents = !std::same_as<Range, parameter_shape> && requires(const Range& range) {
  { range.begin() != range.end() } -> std::convertible_to<bool>;
  requires std::integral<std::remove_cvref_t<decltype(*range.begin())>>;
  requires sizeof(*range.begin()) > 1;  // no text
};

/// Extents of up to four dimensions, row-major.
class parameter_shape {
 public:
  static constexpr std::size_t max_rank = 4;

  constexpr parameter_shape() = default;
  constexpr parameter_shape(std::initializer_list<std::size_t> extents) {
    if (extents.size() > max_rank) throw usage_error("a parameter has at most 4 dimensions", where{});
    for (std::size_t extent : extents) extents_[rank_++] = extent;
  }

  /// Those of a range, such as the vector in which another library has them. Throws usage_error for more than four, or
  /// one that is negative.
  template <lists_extents Range>
  constexpr parameter_shape(const Range& extents, where at = where::current()) {
    for (const auto extent : extents) {
      if (rank_ == max_rank) throw usage_error("a parameter has at most 4 dimensions", at);
      if (extent < decltype(extent){}) throw usage_error("an extent of a parameter is negative", at);
      extents_[rank_++] = static_cast<std::size_t>(extent);
    }
  }

  [[nodiscard]] constexpr std::size_t rank() const noexcept { return rank_; }
  [[nodiscard]] constexpr std::size_t operator[](std::size_t axis) const noexcept { return extents_[axis]; }
  [[nodiscard]] constexpr std::size_t size() const noexcept { return product(0, rank_); }
  [[nodiscard]] constexpr const std::size_t* begin() const noexcept { return extents_.data(); }
  [[nodiscard]] constexpr const std::size_t* end() const noexcept { return extents_.data() + rank_; }

  [[nodiscard]] constexpr std::span<const std::size_t> extents() const noexcept { return {begin(), rank_}; }

  /// Product of the extents of the axes from `first` up to but excluding `last`. It does not wrap around.
  [[nodiscard]] constexpr std::size_t product(std::size_t first, std::size_t last) const noexcept {
    checked_size count = 1;
    for (std::size_t axis = first; axis < last; ++axis) count *= extents_[axis];
    return count.saturated();
  }
  /// A copy of the shape with `extent` on `axis`.
  [[nodiscard]] constexpr parameter_shape with(std::size_t axis, std::size_t extent) const noexcept {
    parameter_shape other = *this;
    other.extents_[axis] = extent;
    return other;
  }

  friend constexpr bool operator==(const parameter_shape&, const parameter_shape&) = default;

 private:
  std::array<std::size_t, max_rank> extents_{};
  std::size_t rank_ = 0;
};

}  // namespace belay::inline BELAY_ABI
