// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where elements of a tensor lie: a box of it, and of the box, taken row by row, a range. What a rank keeps is such a
// range, whatever its mesh and ZeRO stage. Two of them meet where their elements have the same place in the tensor.
// IWYU pragma: private, include "belay/train/checkpoint.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// Entries `first` to `end - 1` of one dimension.
struct box_side {
  std::uint64_t first = 0;
  std::uint64_t end = 0;

  [[nodiscard]] constexpr std::uint64_t count() const noexcept { return end - first; }
  friend constexpr bool operator==(const box_side&, const box_side&) = default;
};

/// A side for each dimension of the tensor. A tensor without dimensions is one element.
struct tensor_box {
  std::vector<box_side> sides;

  [[nodiscard]] std::uint64_t elements() const noexcept {
    std::uint64_t out = 1;
    for (const box_side& each : sides) out *= each.count();
    return out;
  }
  /// "[2:4, 0:64]".
  [[nodiscard]] std::string text() const {
    std::string out = "[";
    for (const box_side& each : sides)
      out += (out.size() > 1 ? ", " : "") + std::to_string(each.first) + ":" + std::to_string(each.end);
    return out + "]";
  }
  friend bool operator==(const tensor_box&, const tensor_box&) = default;
};

/// The contiguous runs of a box within a tensor of `shape`: `runs` of `length` elements each.
class box_runs {
 public:
  box_runs(std::span<const std::uint64_t> shape, const tensor_box& box) : box_(&box), strides_(shape.size()) {
    std::uint64_t stride = 1;
    for (std::size_t d = shape.size(); d-- > 0; stride *= shape[d]) strides_[d] = stride;
    outer_ = shape.size();
    while (outer_ > 0) {
      --outer_;
      length_ *= box.sides[outer_].count();
      if (box.sides[outer_].count() != shape[outer_]) break;
    }
    for (std::size_t d = 0; d < outer_; ++d) runs_ *= box.sides[d].count();
    if (length_ == 0) runs_ = 0;
  }

  [[nodiscard]] std::uint64_t runs() const noexcept { return runs_; }
  [[nodiscard]] std::uint64_t length() const noexcept { return length_; }
  /// The first element of run `number`, counted in the tensor. It grows with the number.
  [[nodiscard]] std::uint64_t begin(std::uint64_t number) const noexcept {
    std::uint64_t out = 0;
    for (std::size_t d = outer_; d < strides_.size(); ++d) out += box_->sides[d].first * strides_[d];
    for (std::size_t d = outer_; d-- > 0; number /= box_->sides[d].count())
      out += (box_->sides[d].first + number % box_->sides[d].count()) * strides_[d];
    return out;
  }

  /// Calls `visit(element of the tensor, element of the box, count)` for what elements `first` to `end - 1` of the box
  /// and elements `from` to `to - 1` of the tensor have in common, run by run.
  template <class Visit>
  void each_common(std::uint64_t first, std::uint64_t end, std::uint64_t from, std::uint64_t to, Visit&& visit) const {
    if (runs_ == 0 || first >= end || from >= to) return;
    std::uint64_t low = first / length_;  // becomes the first run that ends after `from`
    for (std::uint64_t high = (end - 1) / length_ + 1; low < high;) {
      const std::uint64_t middle = low + (high - low) / 2;
      if (begin(middle) + length_ > from)
        high = middle;
      else
        low = middle + 1;
    }
    for (std::uint64_t run = low; run * length_ < end; ++run) {
      const std::uint64_t place = begin(run);
      if (place >= to) return;
      const std::uint64_t in_box = run * length_;
      std::uint64_t skip = first > in_box ? first - in_box : 0;
      if (from > place) skip = std::max(skip, from - place);
      const std::uint64_t stop = std::min({length_, end - in_box, to - place});
      if (skip < stop) visit(place + skip, in_box + skip, stop - skip);
    }
  }

 private:
  const tensor_box* box_;
  std::vector<std::uint64_t> strides_;
  std::size_t outer_ = 0;  // dimensions before those of a run
  std::uint64_t runs_ = 1;
  std::uint64_t length_ = 1;
};

}  // namespace belay::inline BELAY_ABI
