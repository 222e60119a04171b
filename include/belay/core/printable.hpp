// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Text from outside in a form that a terminal only shows. Names in files, messages of other processes and texts of
// exceptions may hold escape sequences, which a terminal obeys, and newlines, which forge a line of output.
//
//   belay::printable("\x1b[31mred\n");  // one line of plain characters: \x1b[31mred\n
//   belay::printable_lines(report);     // the same for text of several lines, which stay lines
//   belay::printable_start(text, 40);   // at most 40 bytes of it, and "..." where there was more
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

// Ranks as messages list them: many ranks at once must not make an unreadable message.

/// "rank 2", "ranks 0, 1, 3", "ranks 0-6, 9": four and more that follow one another are a range.
[[nodiscard]] BELAY_DECL std::string ranks_text(std::span<const int> ranks);

// Numbers and bytes in hexadecimal, in lower case, for names of files and escape sequences.

/// The digit of `value`, which is below 16.
[[nodiscard]] constexpr char hex_digit(unsigned value) noexcept { return "0123456789abcdef"[value]; }

/// Appends the last `digits` digits of `value`, zeros included.
inline void append_hex(std::string& out, std::uint64_t value, unsigned digits) {
  for (unsigned shift = 4 * digits; shift > 0; shift -= 4) {
    out += hex_digit(static_cast<unsigned>(value >> (shift - 4)) & 0xfU);
  }
}

// Where the characters of a text from outside begin and end, and which of its bytes are no UTF-8.

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

/// Whether a terminal acts on the character instead of showing it: C0 and C1 controls, DEL, line separators, and marks
/// that change the direction of the text after them.
[[nodiscard]] constexpr bool is_control(char32_t code) noexcept {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x61c || code == 0x200e || code == 0x200f ||
         (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

/// Appends a control character as it is written in a string literal: a backslash and n, x1b or u202e.
BELAY_DECL void append_escaped(std::string& out, char32_t code);

/// `text` as one line that a terminal only shows. Control characters are escaped, and a byte that is no UTF-8 becomes
/// U+FFFD. The result is its own printable form.
[[nodiscard]] BELAY_DECL std::string printable(std::string_view text);

/// `text` of several lines, which stay lines, as a terminal only shows it. Other control characters are escaped, and a
/// byte that is no UTF-8 becomes U+FFFD.
[[nodiscard]] BELAY_DECL std::string printable_lines(std::string_view text);

/// The printable form of the whole characters in the first `most` bytes of `text`. "..." is added where there was more.
[[nodiscard]] BELAY_DECL std::string printable_start(std::string_view text, std::size_t most);

// Text as a JSON string. Paths, names and messages of other processes may hold quotes, control characters and bytes
// that are no UTF-8. A reader must be able to parse what was written all the same.

/// Calls `put(std::string_view)` with the pieces of `text` in quotes. Control characters are escaped. A byte that is
/// no UTF-8 becomes U+FFFD.
template <class Put>
constexpr void put_json(std::string_view text, Put put) {
  put(std::string_view("\""));
  std::size_t plain = 0;  // bytes at the front of `text` that need no change
  while (plain < text.size()) {
    const auto value = static_cast<unsigned char>(text[plain]);
    const std::size_t length = utf8_length(text.substr(plain));
    const bool quoted = value == '"' || value == '\\';
    const bool control = value < 0x20 || value == 0x7f;
    if (length != 0 && !quoted && !control) {
      plain += length;
      continue;
    }
    put(text.substr(0, plain));
    if (length == 0) {
      put(std::string_view("\xef\xbf\xbd"));
    } else if (quoted) {
      const char escape[] = {'\\', text[plain]};
      put(std::string_view(escape, sizeof escape));
    } else {
      const char escape[] = {'\\', 'u', '0', '0', hex_digit(value / 16U), hex_digit(value % 16U)};
      put(std::string_view(escape, sizeof escape));
    }
    text.remove_prefix(plain + 1);
    plain = 0;
  }
  put(text);
  put(std::string_view("\""));
}

/// Appends `text` in quotes.
inline void append_json(std::string& out, std::string_view text) {
  put_json(text, [&out](std::string_view piece) { out += piece; });
}

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/core/printable.ipp"  // IWYU pragma: export
#endif
