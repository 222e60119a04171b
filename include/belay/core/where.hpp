// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A call site, carried by every handle and every error. std::source_location would do where it exists;
// the builtins behind it exist in all supported compilers, nvcc included.
#pragma once

#include <string>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// Where in the user's source a call was made. Plain data; `file` and `function` point to string
/// literals and live as long as the program.
struct where {
  const char* file = "";
  const char* function = "";
  int line = 0;

  /// The caller's site when used as a default argument: `void f(where at = where::current())`.
  [[nodiscard]] static constexpr where current(const char* file = __builtin_FILE(),
                                               const char* function = __builtin_FUNCTION(),
                                               int line = __builtin_LINE()) noexcept {
    return {file, function, line};
  }

  /// "file:line", as compilers print it.
  [[nodiscard]] std::string text() const { return std::string(file) + ":" + std::to_string(line); }
};

}  // namespace belay::inline BELAY_ABI
