// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// "No such file or directory" of a file that is to be made means its folder; which one is worth saying.
#pragma once

#include <sys/stat.h>

#include <cerrno>
#include <cstddef>
#include <string>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// " (there is no folder /where)" for a path whose folder, or one above it, does not exist: the topmost of these. Else
/// nothing. To be put behind the system's words.
[[nodiscard]] inline std::string missing_folder(const std::string& path) {
  for (std::size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1)) {
    const std::string folder = path.substr(0, end);
    struct stat facts = {};
    if (::stat(folder.c_str(), &facts) != 0) return errno == ENOENT ? " (there is no folder " + folder + ")" : "";
    if (!S_ISDIR(facts.st_mode)) return " (" + folder + " is no folder)";
  }
  return "";
}

}  // namespace belay::inline BELAY_ABI
