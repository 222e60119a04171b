// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Boxes of a tensor: how they are cut, compared and walked.
#pragma once

#include "belay/core/box.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL std::size_t tensor_box::elements() const noexcept {
  std::size_t out = 1;
  for (const box_side& each : sides) out *= each.count();
  return out;
}

BELAY_DECL std::string tensor_box::text() const {
  std::string out = "[";
  for (const box_side& each : sides)
    out += (out.size() > 1 ? ", " : "") + std::to_string(each.first) + ":" + std::to_string(each.end);
  return out + "]";
}

BELAY_DECL tensor_box whole_box(std::span<const std::size_t> shape) {
  tensor_box out;
  for (const std::size_t extent : shape) out.sides.push_back({0, extent});
  return out;
}

BELAY_DECL tensor_box intersection(const tensor_box& a, const tensor_box& b) {
  tensor_box out;
  for (std::size_t d = 0; d < a.sides.size(); ++d) {
    const std::size_t first = greater_of(a.sides[d].first, b.sides[d].first);
    out.sides.push_back({first, greater_of(first, lesser_of(a.sides[d].end, b.sides[d].end))});
  }
  return out;
}

BELAY_DECL bool lies_in(const tensor_box& inner, const tensor_box& outer) noexcept {
  if (inner.sides.size() != outer.sides.size()) return false;
  for (std::size_t d = 0; d < inner.sides.size(); ++d) {
    const box_side& side = inner.sides[d];
    if (side.first > side.end || side.first < outer.sides[d].first || side.end > outer.sides[d].end) return false;
  }
  return true;
}

BELAY_DECL box_runs::box_runs(std::span<const std::size_t> shape, const tensor_box& of)
    : box_(&of), strides_(shape.size()) {
  std::size_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0; stride *= shape[d]) strides_[d] = stride;
  outer_ = shape.size();
  while (outer_ > 0) {
    --outer_;
    length_ *= of.sides[outer_].count();
    if (of.sides[outer_].count() != shape[outer_]) break;
  }
  for (std::size_t d = 0; d < outer_; ++d) runs_ *= of.sides[d].count();
  if (length_ == 0) runs_ = 0;
}

BELAY_DECL std::size_t box_runs::begin(std::size_t number) const noexcept {
  std::size_t out = 0;
  for (std::size_t d = outer_; d < strides_.size(); ++d) out += box_->sides[d].first * strides_[d];
  for (std::size_t d = outer_; d-- > 0; number /= box_->sides[d].count())
    out += (box_->sides[d].first + number % box_->sides[d].count()) * strides_[d];
  return out;
}

}  // namespace belay::inline BELAY_ABI
