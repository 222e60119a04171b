// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Text as JSON has it. Paths and messages come from outside and may hold quotes, control characters and bytes that are
// no UTF-8; a reader must be able to parse what was written all the same.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// Bytes of the UTF-8 character that `text` begins with; 0 where it begins with none (also one cut off, an overlong
/// form, a surrogate, more than U+10FFFF).
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

/// Appends `text` in quotes. A byte that is no UTF-8 becomes U+FFFD.
inline void append_json(std::string& out, std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  out += '"';
  while (!text.empty()) {
    const auto value = static_cast<unsigned char>(text.front());
    const std::size_t length = utf8_length(text);
    if (length == 0) {
      out += "\xef\xbf\xbd";
    } else if (value == '"' || value == '\\') {
      out += '\\';
      out += text.front();
    } else if (value < 0x20 || value == 0x7f) {
      out += "\\u00";
      out += digits[value / 16];
      out += digits[value % 16];
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  out += '"';
}

}  // namespace belay::inline BELAY_ABI
