// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Text as a JSON string. Paths, names and messages of other processes may hold quotes, control characters and bytes
// that are no UTF-8. A reader must be able to parse what was written all the same.
//
//   std::string line = "{\"file\":";
//   belay::append_json(line, path);                                        // to a string
//   belay::put_json(path, [&](std::string_view piece) { out << piece; });  // to anything else, without allocation
//   line += '}';
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "belay/core/config.hpp"
#include "belay/core/hexadecimal.hpp"
#include "belay/core/utf8.hpp"

namespace belay::inline BELAY_ABI {

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
