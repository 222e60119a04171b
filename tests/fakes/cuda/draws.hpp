// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Numbers from a seed, for what fakes leave to chance.
#pragma once

#include <cstdint>

namespace fakes {

/// splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
class draws {
 public:
  explicit draws(std::uint64_t seed) noexcept : state_(seed) {}
  /// The next number, below `below`.
  [[nodiscard]] std::uint64_t operator()(std::uint64_t below) noexcept {
    state_ += 0x9e3779b97f4a7c15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return (z ^ (z >> 31)) % below;
  }

 private:
  std::uint64_t state_;
};

}  // namespace fakes
