// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which elements of a tensor no piece holds, and which several hold. Pieces are taken as boxes, never element by
// element: the work grows with their number, not with the tensor's size.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "belay/train/checkpoint.hpp"

namespace belay_checkpoint {

/// A box of a tensor, and the pieces that hold it: none, or at least two.
struct wrong_box {
  belay::tensor_box box;
  std::uint64_t first = 0;          // element of the tensor
  std::vector<std::size_t> pieces;  // their numbers in the tensor
};

class coverage {
 public:
  explicit coverage(std::span<const std::uint64_t> shape) : shape_(shape) {
    // Dimensions of one entry divide nothing; the others are few, so that the recursion over them is not deep.
    for (std::size_t d = 0; d < shape.size(); ++d)
      if (shape[d] != 1) dimensions_.push_back(d);
  }

  /// `number` names the piece in what is found.
  void add(std::size_t number, const belay::manifest_piece& piece) {
    if (piece.count == 0) return;
    std::vector<belay::box_side> box;
    for (const std::size_t d : dimensions_) box.push_back(piece.box.sides[d]);
    divide(number, box, 0, piece.first, piece.first + piece.count);
  }

  /// The boxes that are not held exactly once, ascending; `most` of them at most.
  [[nodiscard]] std::vector<wrong_box> wrong(std::size_t most) const {
    if (std::find(shape_.begin(), shape_.end(), 0U) != shape_.end()) return {};
    std::vector<std::size_t> all(boxes_.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    std::vector<wrong_box> out;
    for (const cell& each : sweep(0, all, most)) out.push_back(as_found(each));
    return out;
  }

 private:
  struct held_box {
    std::size_t piece;
    std::vector<belay::box_side> sides;
  };
  struct cell {
    std::vector<belay::box_side> sides;  // of the last dimensions, backwards
    std::vector<std::size_t> pieces;
    friend bool operator==(const cell&, const cell&) = default;
  };

  // Elements `first` to `end - 1` of `box`, which is fixed before dimension `d`, as boxes: an incomplete row, whole
  // rows, an incomplete row.
  void divide(std::size_t piece, std::vector<belay::box_side>& box, std::size_t d, std::uint64_t first,
              std::uint64_t end) {
    if (first >= end) return;
    if (d == box.size()) return boxes_.push_back({piece, box});
    std::uint64_t row = 1;
    for (std::size_t inner = d + 1; inner < box.size(); ++inner) row *= box[inner].count();
    const belay::box_side whole = box[d];
    const auto rows = [&](std::uint64_t from, std::uint64_t to) { box[d] = {whole.first + from, whole.first + to}; };
    const std::uint64_t whole_from = (first + row - 1) / row, whole_to = end / row;
    if (whole_from > whole_to) {  // within one row
      rows(whole_to, whole_to + 1);
      divide(piece, box, d + 1, first - whole_to * row, end - whole_to * row);
    } else {
      if (first < whole_from * row) {
        rows(whole_from - 1, whole_from);
        divide(piece, box, d + 1, first - (whole_from - 1) * row, row);
      }
      if (whole_from < whole_to) {
        rows(whole_from, whole_to);
        boxes_.push_back({piece, box});
      }
      if (whole_to * row < end) {
        rows(whole_to, whole_to + 1);
        divide(piece, box, d + 1, 0, end - whole_to * row);
      }
    }
    box[d] = whole;
  }

  // The wrong cells among `active` boxes, seen from dimension `d` on.
  [[nodiscard]] std::vector<cell> sweep(std::size_t d, const std::vector<std::size_t>& active, std::size_t most) const {
    if (d == dimensions_.size()) {
      if (active.size() == 1) return {};
      cell out;
      for (const std::size_t each : active) out.pieces.push_back(boxes_[each].piece);
      return {out};
    }
    std::vector<std::uint64_t> cuts{0, shape_[dimensions_[d]]};
    for (const std::size_t each : active) {
      cuts.push_back(boxes_[each].sides[d].first);
      cuts.push_back(boxes_[each].sides[d].end);
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::vector<std::size_t> by_begin = active;
    std::stable_sort(by_begin.begin(), by_begin.end(),
                     [&](std::size_t a, std::size_t b) { return boxes_[a].sides[d].first < boxes_[b].sides[d].first; });
    std::vector<cell> out, before;  // before: the cells of the last slab, which this one may continue
    std::vector<std::size_t> here;
    auto next = by_begin.begin();
    for (std::size_t i = 0; i + 1 < cuts.size() && out.size() < most; ++i) {
      std::erase_if(here, [&](std::size_t each) { return boxes_[each].sides[d].end <= cuts[i]; });
      for (; next != by_begin.end() && boxes_[*next].sides[d].first == cuts[i]; ++next) here.push_back(*next);
      std::vector<cell> found = sweep(d + 1, here, most - out.size());
      if (!found.empty() && found == before) {
        for (std::size_t k = out.size() - found.size(); k < out.size(); ++k) out[k].sides.back().end = cuts[i + 1];
        continue;
      }
      before = found;
      for (cell& each : found) {
        each.sides.push_back({cuts[i], cuts[i + 1]});
        out.push_back(std::move(each));
      }
    }
    return out;
  }

  [[nodiscard]] wrong_box as_found(const cell& of) const {
    wrong_box out;
    out.box.sides.assign(shape_.size(), {0, 1});
    for (std::size_t i = 0; i < dimensions_.size(); ++i)
      out.box.sides[dimensions_[i]] = of.sides[dimensions_.size() - 1 - i];
    for (std::size_t d = 0; d < shape_.size(); ++d) out.first = out.first * shape_[d] + out.box.sides[d].first;
    out.pieces = of.pieces;
    return out;
  }

  std::span<const std::uint64_t> shape_;
  std::vector<std::size_t> dimensions_;
  std::vector<held_box> boxes_;
};

}  // namespace belay_checkpoint
