// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Sizes as people write them: 8, 4K, 64M, 1G with powers of 1024.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bench {

/// Bytes of "64M"; nothing where the text is no such number or does not fit.
[[nodiscard]] inline std::optional<std::size_t> parse_size(std::string_view text) {
  std::size_t shift = 0;
  if (!text.empty()) {
    switch (text.back()) {
      case 'k':
      case 'K': shift = 10; break;
      case 'm':
      case 'M': shift = 20; break;
      case 'g':
      case 'G': shift = 30; break;
      default: break;
    }
  }
  if (shift > 0) text.remove_suffix(1);
  if (text.empty()) return std::nullopt;
  std::size_t value = 0;
  for (const char digit : text) {
    if (digit < '0' || digit > '9') return std::nullopt;
    if (value > (std::numeric_limits<std::size_t>::max() / 16) >> shift) return std::nullopt;
    value = value * 10 + static_cast<std::size_t>(digit - '0');
  }
  return value << shift;
}

/// "64M" where the number is whole in that unit, else the bytes.
[[nodiscard]] inline std::string size_text(std::size_t bytes) {
  const char units[] = {'K', 'M', 'G'};
  for (std::size_t u = 3; u-- > 0;) {
    const std::size_t unit = std::size_t{1} << (10 * (u + 1));
    if (bytes >= unit && bytes % unit == 0) return std::to_string(bytes / unit) + units[u];
  }
  return std::to_string(bytes);
}

/// min, min x factor, ... up to max.
[[nodiscard]] inline std::vector<std::size_t> sweep(std::size_t min, std::size_t max, std::size_t factor) {
  std::vector<std::size_t> out;
  for (std::size_t bytes = min; bytes <= max; bytes *= factor) {
    out.push_back(bytes);
    if (factor < 2 || bytes == 0 || bytes > max / factor) break;
  }
  return out;
}

}  // namespace bench
