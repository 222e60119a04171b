// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where the characters of a text from outside begin and end, and which of its bytes are no UTF-8.
//
//   for (std::string_view rest = text; !rest.empty();) {
//     const std::size_t length = belay::utf8_length(rest);  // 0: no character begins here
//     rest.remove_prefix(length == 0 ? 1 : length);
//   }
#pragma once

#include <cstddef>
#include <string_view>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// Bytes of the UTF-8 character that `text` begins with. 0 where it begins with none: also a character that is cut off,
/// an overlong form, a surrogate, or a code point above U+10FFFF.
[[nodiscard]] constexpr std::size_t utf8_length(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto follows = [&](std::size_t i) { return byte(i) >> 6 == 2; };
  const unsigned first = byte(0), second = byte(1);
  if (text.empty()) return 0;
  if (first < 0x80) return 1;
  if (first < 0xc2 || !follows(1)) return 0;
  if (first < 0xe0) return 2;
  if (!follows(2) || (first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0)) return 0;
  if (first < 0xf0) return 3;
  if (!follows(3) || first > 0xf4 || (first == 0xf0 && second < 0x90) || (first == 0xf4 && second >= 0x90)) return 0;
  return 4;
}

/// The code point of `text`, which is one whole and valid character.
[[nodiscard]] constexpr char32_t utf8_code_point(std::string_view text) noexcept {
  char32_t code = static_cast<unsigned char>(text.front());
  if (text.size() > 1) code &= 0x7fU >> text.size();
  for (const char c : text.substr(1)) code = code << 6 | (static_cast<unsigned char>(c) & 0x3fU);
  return code;
}

}  // namespace belay::inline BELAY_ABI
