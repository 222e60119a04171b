// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Arithmetic on sizes that a caller gave. A sum or product that wraps around is a small number: it passes every later
// comparison, and memory is then written beyond its end. A `checked_size` stays too large to the end of the
// expression, where it is refused.
//
//   const auto words = [] { return "the table is"; };
//   const std::size_t bytes = (belay::checked_size(rows) * width * sizeof(float)).value(words, at);
//   // or throws belay::size_error: "the table is more than any memory holds"
#pragma once

#include <concepts>
#include <cstddef>
#include <string>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// The most bytes an object can have: the difference of two pointers is signed.
inline constexpr std::size_t largest_size = largest_value<std::size_t> / 2;

/// A size in bytes or elements. Operators saturate: a value too large for `std::size_t` stays too large, unless it is
/// multiplied by zero.
class checked_size {
 public:
  /// A size that fits.
  BELAY_HD constexpr checked_size(std::size_t value = 0) noexcept : value_(value) {}

  /// Sum and product; what overflows stays too large, and does not fit.
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
  [[nodiscard]] BELAY_HD constexpr checked_size rounded_up(std::size_t unit) const noexcept {
    const std::size_t over = value_ % unit;
    return over == 0 ? *this : *this + (unit - over);
  }

  /// Whether an object can have so many bytes.
  [[nodiscard]] BELAY_HD constexpr bool fits() const noexcept { return value_ <= largest_size; }
  /// The size, or some value above `largest_size` where it does not fit.
  [[nodiscard]] BELAY_HD constexpr std::size_t saturated() const noexcept { return value_; }
  /// The size; throws `size_error` where it does not fit. `words()` is the sentence up to "more than any memory holds".
  template <std::invocable Words>
  [[nodiscard]] constexpr std::size_t value(Words words, const where& at) const {
    if (!fits()) [[unlikely]]
      refuse(words, at);
    return value_;
  }

 private:
  // Overflow builtins work neither in every compiler's constants nor on a GPU.
  __extension__ typedef unsigned __int128 wide;

  template <class Words>
  [[noreturn, gnu::cold, gnu::noinline]] static void refuse(Words words, const where& at) {
    throw size_error(words(), at);
  }

  std::size_t value_;
};

}  // namespace belay::inline BELAY_ABI
