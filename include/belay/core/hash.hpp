// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A hash to compare data by: between two moments of one rank, or between ranks. It finds accidents, not attacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// 64 bits of what was added, in order. A change of one word is always seen, changes of several but by chance.
class content_hash {
 public:
  constexpr content_hash& add(std::uint64_t word) noexcept {
    hash_ = (hash_ ^ word) * 0x9e3779b97f4a7c15U;
    hash_ ^= hash_ >> 32;  // else the highest bits of two words, such as signs, could cancel
    return *this;
  }
  /// `bytes` bytes at `data`, and their number.
  content_hash& add_bytes(const void* data, std::size_t bytes) noexcept {
    const auto* next = static_cast<const unsigned char*>(data);
    for (std::size_t left = bytes; left > 0;) {
      std::uint64_t word = 0;
      const std::size_t taken = left < sizeof(word) ? left : sizeof(word);
      std::memcpy(&word, next, taken);
      add(word);
      next += taken;
      left -= taken;
    }
    return add(bytes);
  }
  content_hash& add_text(std::string_view text) noexcept { return add_bytes(text.data(), text.size()); }

  [[nodiscard]] constexpr std::uint64_t value() const noexcept { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325U;
};

}  // namespace belay::inline BELAY_ABI
