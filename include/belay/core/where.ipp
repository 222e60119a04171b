// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Call sites as text.
#pragma once

#include <cstring>

#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

[[gnu::cold]] BELAY_DECL std::string where::text() const {
  const std::string place = std::string(file) + ":" + std::to_string(line);
  if (!in_standard_library()) return place;
  return place +
         " (an object made by the standard library: belay::where::current() as its last argument names your line)";
}

[[gnu::cold]] BELAY_DECL bool where::in_standard_library() const noexcept {
  const char* const folder = std::strstr(file, "/include/c++/");  // 12/bits/stl_construct.h, v1/optional
  if (folder == nullptr) return false;
  const char* const version = folder + sizeof("/include/c++/") - 1;
  const char first = *version == 'v' ? version[1] : *version;
  return first >= '0' && first <= '9';
}

}  // namespace belay::inline BELAY_ABI
