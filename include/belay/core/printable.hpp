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
#include <string>
#include <string_view>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

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

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/core/printable.ipp"  // IWYU pragma: export
#endif
