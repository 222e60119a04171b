// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What `frame.add_to(parameter)` gives: memory that the step has not written yet, or what backwards have added so far.
// IWYU pragma: private, include "belay/step.hpp"
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

#include "belay/core/config.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/step/contribution.hpp"

namespace belay::inline BELAY_ABI {

/// Zeroes memory that nothing has written: a kernel.
template <class T>
struct write_zero {
  T* out;
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept { out[i] = T(0); }
};

/// The gradient of a parameter, to be added to: who asks for its memory gets zeros where the step has not written it,
/// but a product, which writes instead of adding.
template <class Frame, class Values>
class gradient_sum {
 public:
  gradient_sum(Frame& frame, const Values& values, contribution_target* target) noexcept
      : frame_(&frame), values_(values), target_(target) {}

  [[nodiscard]] auto* data() const {
    zero();
    return values_.data();
  }
  template <std::size_t Rank>
  [[nodiscard]] auto as(where at = where::current()) const {
    zero();
    return values_.template as<Rank>(at);
  }
  template <class T, std::size_t Rank>
  requires std::convertible_to<const Values&, view<T, Rank>>
  operator view<T, Rank>() const {
    zero();
    return values_;
  }

  // For products.
  [[nodiscard]] const Values& values() const noexcept { return values_; }
  [[nodiscard]] bool take_unwritten() const noexcept {
    if (target_ == nullptr || !target_->unwritten()) return false;
    target_->note_written();
    return true;
  }

 private:
  void zero() const {
    using element = std::remove_reference_t<decltype(*values_.data())>;
    if (take_unwritten()) frame_->each(values_.size(), write_zero<element>{values_.data()});
  }

  Frame* frame_;
  Values values_;
  contribution_target* target_;
};

}  // namespace belay::inline BELAY_ABI
