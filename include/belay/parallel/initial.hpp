// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The first values of a parameter. Those that are drawn depend on seed, name and global offset alone, so every mesh
// starts from the same model.
//
//   belay::parameter<float> weight{{"first.weight", {32, 16}, belay::initial::constant(0)}};
#pragma once

#include <cstdint>
#include <string_view>

#include "belay/core/config.hpp"
#include "belay/core/hash.hpp"

namespace belay::inline BELAY_ABI {

/// The first values of a parameter.
class initial {
 public:
  /// The kinds of first values: one number, normal numbers by counter, or what a filler gives.
  enum class initializer { constant, normal, filled };

  /// All elements `value`.
  [[nodiscard]] static constexpr initial constant(double value) noexcept { return {initializer::constant, value}; }
  /// Normal with mean 0.
  [[nodiscard]] static constexpr initial normal(double stddev) noexcept { return {initializer::normal, stddev}; }
  /// The values come from `fill`, which the owner of the parameter calls: from a file, or a function.
  [[nodiscard]] static constexpr initial filled() noexcept { return {initializer::filled, 0}; }

  /// The kind, and its number: the value, or the deviation.
  [[nodiscard]] constexpr initializer how() const noexcept { return kind_; }
  [[nodiscard]] constexpr double value() const noexcept { return value_; }

 private:
  constexpr initial(initializer how, double value) noexcept : kind_(how), value_(value) {}
  initializer kind_;
  double value_;
};

/// Standard normal numbers by index. Number `i` is computed from a hash of seed, name and `i`, so any part of the
/// sequence can be made on any rank, in any order, with the same bits.
class counted_normal {
 public:
  /// Of a parameter with that name; the same numbers on each rank and for every cut.
  constexpr counted_normal(std::uint64_t seed, std::string_view name) noexcept
      : key_(mix(fnv1a(mix(seed)).add_text(name).value())) {}

  /// Number `index`, of mean 0 and deviation 1.
  [[nodiscard]] double operator()(std::uint64_t index) const noexcept {
    const std::uint64_t first = mix(key_ + index * 0x9e3779b97f4a7c15u);
    const std::uint64_t second = mix(first ^ 0xd1b54a32d192ed03u);
    constexpr double scale = 1.0 / 9007199254740992.0;                       // 2^-53
    const double radius = (static_cast<double>(first >> 11) + 1.0) * scale;  // in (0, 1]
    const double angle = static_cast<double>(second >> 11) * scale;          // in turns, [0, 1)
    // The C library's functions: to include <cmath> costs more than the rest of this header.
    return __builtin_sqrt(-2.0 * __builtin_log(radius)) * __builtin_cos(6.283185307179586 * angle);
  }

 private:
  [[nodiscard]] static constexpr std::uint64_t mix(std::uint64_t x) noexcept {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  std::uint64_t key_;
};

}  // namespace belay::inline BELAY_ABI
