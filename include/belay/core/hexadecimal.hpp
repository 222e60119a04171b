// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Numbers and bytes in hexadecimal, in lower case, for names of files and escape sequences.
//
//   std::string name = "belay-";
//   belay::append_hex(name, hash, 16);              // belay-00c0ffee00c0ffee
//   const char low = belay::hex_digit(byte & 15U);  // one digit
#pragma once

#include <cstdint>
#include <string>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// The digit of `value`, which is below 16.
[[nodiscard]] constexpr char hex_digit(unsigned value) noexcept { return "0123456789abcdef"[value]; }

/// Appends the last `digits` digits of `value`, zeros included.
inline void append_hex(std::string& out, std::uint64_t value, unsigned digits) {
  for (unsigned shift = 4 * digits; shift > 0; shift -= 4) {
    out += hex_digit(static_cast<unsigned>(value >> (shift - 4)) & 0xfU);
  }
}

}  // namespace belay::inline BELAY_ABI
