// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Escaping control characters.
#pragma once

#include <cstddef>

#include "belay/core/printable.hpp"

namespace belay::inline BELAY_ABI {

[[gnu::cold]] BELAY_DECL void append_escaped(std::string& out, char32_t code) {
  switch (code) {
    case '\n': out += "\\n"; return;
    case '\r': out += "\\r"; return;
    case '\t': out += "\\t"; return;
    default: break;
  }
  out += code < 0x80 ? "\\x" : "\\u";
  append_hex(out, code, code < 0x80 ? 2 : 4);
}

[[gnu::cold]] BELAY_DECL std::string printable(std::string_view text) {
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

[[gnu::cold]] BELAY_DECL std::string printable_lines(std::string_view text) {
  std::string out;
  for (std::size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    out += printable(text.substr(0, end)) + '\n';
    text.remove_prefix(end + 1);
  }
  return out + printable(text);
}

[[gnu::cold]] BELAY_DECL std::string printable_start(std::string_view text, std::size_t most) {
  std::size_t end = 0;
  while (end < text.size()) {
    const std::size_t length = utf8_length(text.substr(end));
    if (end + (length == 0 ? 1 : length) > most) break;
    end += length == 0 ? 1 : length;
  }
  return printable(text.substr(0, end)) + (end < text.size() ? "..." : "");
}

[[gnu::cold]] BELAY_DECL std::string ranks_text(std::span<const int> ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last - i < 3) last = i;  // short ones are listed
    out += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
    if (last > i) out += "-" + std::to_string(ranks[last]);
    i = last + 1;
  }
  return out;
}

}  // namespace belay::inline BELAY_ABI
