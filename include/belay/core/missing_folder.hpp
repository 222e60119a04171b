// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which folder is missing, for the message about a file that could not be created. The system's "No such file or
// directory" then means one of the folders in its path.
//
//   throw belay::file_error(path, 0, std::strerror(errno) + belay::missing_folder(path));
//   // "... No such file or directory (there is no folder /data/run7)"
#pragma once

#include <sys/stat.h>

#include <cerrno>
#include <cstddef>
#include <string>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// " (there is no folder /where)" with the topmost folder of `path` that does not exist; "" where all of them do. It is
/// appended to the system's message.
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
