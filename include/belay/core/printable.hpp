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
#include "belay/core/hexadecimal.hpp"
#include "belay/core/utf8.hpp"

namespace belay::inline BELAY_ABI {

/// Whether a terminal acts on the character instead of showing it: C0 and C1 controls, DEL, line separators, and marks
/// that change the direction of the text after them.
[[nodiscard]] constexpr bool is_control(char32_t code) noexcept {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x61c || code == 0x200e || code == 0x200f ||
         (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

/// Appends a control character as it is written in a string literal: \n, \x1b, \u202e.
inline void append_escaped(std::string& out, char32_t code) {
  switch (code) {
    case '\n': out += "\\n"; return;
    case '\r': out += "\\r"; return;
    case '\t': out += "\\t"; return;
    default: break;
  }
  out += code < 0x80 ? "\\x" : "\\u";
  append_hex(out, code, code < 0x80 ? 2 : 4);
}

/// `text` as one line that a terminal only shows. Control characters are escaped, and a byte that is no UTF-8 becomes
/// U+FFFD. The result is its own printable form.
[[nodiscard]] inline std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const std::string_view character = text.substr(0, length);
    if (length == 0)
      out += "\xef\xbf\xbd";
    else if (const char32_t code = utf8_code_point(character); is_control(code))
      append_escaped(out, code);
    else
      out += character;
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

/// The same for text of several lines, which stay lines.
[[nodiscard]] inline std::string printable_lines(std::string_view text) {
  std::string out;
  for (std::size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    out += printable(text.substr(0, end)) + '\n';
    text.remove_prefix(end + 1);
  }
  return out + printable(text);
}

/// The printable form of the whole characters in the first `most` bytes of `text`. "..." is added where there was more.
[[nodiscard]] inline std::string printable_start(std::string_view text, std::size_t most) {
  std::size_t end = 0;
  while (end < text.size()) {
    const std::size_t length = utf8_length(text.substr(end));
    if (end + (length == 0 ? 1 : length) > most) break;
    end += length == 0 ? 1 : length;
  }
  return printable(text.substr(0, end)) + (end < text.size() ? "..." : "");
}

}  // namespace belay::inline BELAY_ABI
