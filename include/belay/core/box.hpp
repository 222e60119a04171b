// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Boxes of a tensor: a range of each dimension. What a rank holds of a tensor is a box, whatever cuts it; of a box,
// taken row by row, ZeRO keeps a range. Where two of them meet is what is sent, read or copied.
//
//   const belay::tensor_box mine{{{2, 4}, {0, 64}}};                          // rows 2 and 3 of 64 columns
//   const belay::tensor_box both = belay::intersection(mine, theirs);
//   belay::each_common_run(mine, theirs, [&](std::size_t in_mine, std::size_t in_theirs, std::size_t count) {...});
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// Entries `first` to `end - 1` of one dimension.
struct box_side {
  /// The first index and the one behind the last.
  std::size_t first = 0;
  std::size_t end = 0;

  /// Indices of this side.
  [[nodiscard]] constexpr std::size_t count() const noexcept { return end - first; }
  friend constexpr bool operator==(const box_side&, const box_side&) = default;
};

/// A side for each dimension of the tensor. A tensor without dimensions is one element.
struct tensor_box {
  /// One side a dimension.
  std::vector<box_side> sides;

  /// Elements within.
  [[nodiscard]] std::size_t elements() const noexcept;
  /// "[2:4, 0:64]".
  [[nodiscard]] std::string text() const;
  friend bool operator==(const tensor_box&, const tensor_box&) = default;
};

/// All of a tensor of `shape`.
[[nodiscard]] BELAY_DECL tensor_box whole_box(std::span<const std::size_t> shape);

/// The part that two boxes of one tensor have in common. Where there is none, a side is empty.
[[nodiscard]] BELAY_DECL tensor_box intersection(const tensor_box& a, const tensor_box& b);

/// Whether all of `inner` lies in `outer`.
[[nodiscard]] BELAY_DECL bool lies_in(const tensor_box& inner, const tensor_box& outer) noexcept;

/// Calls `visit(element of a, element of b, count)` for the contiguous runs of what two boxes of one tensor have in
/// common, in order. Elements of a box are counted row by row.
template <class Visit>
void each_common_run(const tensor_box& a, const tensor_box& b, Visit&& visit) {
  const tensor_box both = intersection(a, b);
  if (both.elements() == 0) return;
  std::size_t outer = both.sides.size(), length = 1, runs = 1;
  while (outer > 0) {
    --outer;
    length *= both.sides[outer].count();
    if (both.sides[outer] != a.sides[outer] || both.sides[outer] != b.sides[outer]) break;
  }
  for (std::size_t d = 0; d < outer; ++d) runs *= both.sides[d].count();
  for (std::size_t run = 0; run < runs; ++run) {
    std::size_t in_a = 0, in_b = 0, stride_a = 1, stride_b = 1, rest = run;
    for (std::size_t d = both.sides.size(); d-- > 0;) {
      std::size_t entry = both.sides[d].first;
      if (d < outer) {
        entry += rest % both.sides[d].count();
        rest /= both.sides[d].count();
      }
      in_a += (entry - a.sides[d].first) * stride_a;
      in_b += (entry - b.sides[d].first) * stride_b;
      stride_a *= a.sides[d].count();
      stride_b *= b.sides[d].count();
    }
    visit(in_a, in_b, length);
  }
}

/// Copies what two boxes have in common from memory of the one, row by row, to memory of the other. The memories do not
/// overlap.
template <class T>
void copy_common(const tensor_box& from, const T* source, const tensor_box& to, T* target) {
  each_common_run(from, to, [&](std::size_t in_source, std::size_t in_target, std::size_t count) {
    std::copy_n(source + in_source, count, target + in_target);
  });
}

/// The contiguous runs of a box within a tensor of `shape`: `runs` of `length` elements each. The box outlives it.
class box_runs {
 public:
  /// The runs of that box in a tensor of that shape, row-major.
  box_runs(std::span<const std::size_t> shape, const tensor_box& of);

  /// How many runs there are, and the elements of each.
  [[nodiscard]] std::size_t runs() const noexcept { return runs_; }
  [[nodiscard]] std::size_t length() const noexcept { return length_; }
  /// The first element of run `number`, counted in the tensor. It grows with the number.
  [[nodiscard]] std::size_t begin(std::size_t number) const noexcept;

  /// Calls `visit(element of the tensor, element of the box, count)` for what elements `first` to `end - 1` of the box
  /// and elements `from` to `to - 1` of the tensor have in common, run by run.
  template <class Visit>
  void each_common(std::size_t first, std::size_t end, std::size_t from, std::size_t to, Visit&& visit) const {
    if (runs_ == 0 || first >= end || from >= to) return;
    std::size_t low = first / length_;  // becomes the first run that ends after `from`
    for (std::size_t high = (end - 1) / length_ + 1; low < high;) {
      const std::size_t middle = low + (high - low) / 2;
      if (begin(middle) + length_ > from)
        high = middle;
      else
        low = middle + 1;
    }
    for (std::size_t run = low; run * length_ < end; ++run) {
      const std::size_t place = begin(run);
      if (place >= to) return;
      const std::size_t in_box = run * length_;
      std::size_t skip = first > in_box ? first - in_box : 0;
      if (from > place) skip = greater_of(skip, from - place);
      const std::size_t stop = lesser_of({length_, end - in_box, to - place});
      if (skip < stop) visit(place + skip, in_box + skip, stop - skip);
    }
  }

 private:
  const tensor_box* box_;
  std::vector<std::size_t> strides_;
  std::size_t outer_ = 0;  // dimensions before those of a run
  std::size_t runs_ = 1;
  std::size_t length_ = 1;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/core/box.ipp"  // IWYU pragma: export
#endif
