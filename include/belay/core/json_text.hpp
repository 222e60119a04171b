// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Text as JSON has it. Paths and messages come from outside and may hold quotes, control characters and bytes that are
// no UTF-8; a reader must be able to parse what was written all the same.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "belay/core/config.hpp"
#include "belay/core/utf8.hpp"

namespace belay::inline BELAY_ABI {

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
