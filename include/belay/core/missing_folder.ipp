// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The topmost folder of a path that does not exist.
#pragma once

#include <sys/stat.h>

#include <cerrno>
#include <cstddef>

#include "belay/core/missing_folder.hpp"

namespace belay::inline BELAY_ABI {

[[gnu::cold]] BELAY_DECL std::string missing_folder(const std::string& path) {
  for (std::size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1)) {
    const std::string folder = path.substr(0, end);
    struct stat facts = {};
    if (::stat(folder.c_str(), &facts) != 0) return errno == ENOENT ? " (there is no folder " + folder + ")" : "";
    if (!S_ISDIR(facts.st_mode)) return " (" + folder + " is no folder)";
  }
  return "";
}

}  // namespace belay::inline BELAY_ABI
