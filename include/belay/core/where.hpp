// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A call site, carried by every handle and every error. It is made by compiler builtins, which also exist where
// std::source_location does not (nvcc).
//
//   void reduce(std::span<float> values, belay::where at = belay::where::current());
//   reduce(values);  // `at` is this line
//   at.text();       // "train.cpp:88"
#pragma once

#include <string>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// Where in the user's source a call was made. Plain data; `file` and `function` point to string literals.
struct where {
  /// File and function as the compiler names them, and the line; 0: not known.
  const char* file = "";
  const char* function = "";
  int line = 0;

  /// The caller's site when used as a default argument: `void f(where at = where::current())`.
  [[nodiscard]] static constexpr where current(const char* file = __builtin_FILE(),
                                               const char* function = __builtin_FUNCTION(),
                                               int line = __builtin_LINE()) noexcept {
    return {file, function, line};
  }

  /// Whether the call was made by a header of the standard library on the user's behalf: `emplace`, `make_unique`.
  [[nodiscard]] bool in_standard_library() const noexcept;

  /// "file:line", as compilers print it. For a line of the standard library it also says how to get the user's line.
  [[nodiscard]] std::string text() const;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/core/where.ipp"  // IWYU pragma: export
#endif
