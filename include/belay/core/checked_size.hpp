// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Arithmetic on sizes that a caller gave. A sum or product that wraps round is a small number, which passes every later
// comparison and is written beyond; here it stays too large to the end of the expression, where it is refused.
#pragma once

#include <concepts>
#include <cstddef>
#include <limits>
#include <string>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// Bytes of the largest object there can be: a pointer's difference is signed.
inline constexpr std::size_t largest_size = std::numeric_limits<std::size_t>::max() / 2;

/// A size that a caller gave, or that follows from it, is more than any memory holds. `what` names operation and
/// argument. Nothing was written or allocated by the refused call.
class size_error : public usage_error {
 public:
  size_error(const std::string& what, where at) : usage_error(what + " more than any memory holds", at) {}
};

/// A size in bytes or elements. Operators saturate: what is too large for `std::size_t` stays so, unless it is
/// multiplied by zero. Plain data; costs a multiplication and a comparison.
class checked_size {
 public:
  BELAY_HD constexpr checked_size(std::size_t value = 0) noexcept : value_(value) {}

  BELAY_HD constexpr checked_size& operator+=(checked_size other) noexcept {
    const std::size_t added = value_ + other.value_;
    value_ = added < value_ ? ~std::size_t{0} : added;
    return *this;
  }
  BELAY_HD constexpr checked_size& operator*=(checked_size other) noexcept {
    const wide exact = wide{value_} * other.value_;
    value_ = exact > ~std::size_t{0} ? ~std::size_t{0} : static_cast<std::size_t>(exact);
    return *this;
  }
  BELAY_HD friend constexpr checked_size operator+(checked_size a, checked_size b) noexcept { return a += b; }
  BELAY_HD friend constexpr checked_size operator*(checked_size a, checked_size b) noexcept { return a *= b; }

  /// The next multiple of `unit`, which is not 0.
  BELAY_HD [[nodiscard]] constexpr checked_size rounded_up(std::size_t unit) const noexcept {
    const std::size_t over = value_ % unit;
    return over == 0 ? *this : *this + (unit - over);
  }

  /// Whether there can be an object of so many bytes.
  BELAY_HD [[nodiscard]] constexpr bool fits() const noexcept { return value_ <= largest_size; }
  /// More than `largest_size` where it does not fit.
  BELAY_HD [[nodiscard]] constexpr std::size_t saturated() const noexcept { return value_; }
  /// The size; throws `size_error` where it does not fit. `words()` is the sentence up to "more than any memory holds".
  template <std::invocable Words>
  [[nodiscard]] constexpr std::size_t value(Words words, const where& at) const {
    if (!fits()) [[unlikely]]
      refuse(words, at);
    return value_;
  }

 private:
  __extension__ typedef unsigned __int128
      wide;  // overflow builtins are not for every compiler's constants, nor for a GPU

  template <class Words>
  [[noreturn, gnu::cold, gnu::noinline]] static void refuse(Words words, const where& at) {
    throw size_error(words(), at);
  }

  std::size_t value_;
};

}  // namespace belay::inline BELAY_ABI
