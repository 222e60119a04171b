// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which folder is missing, for the message about a file that could not be created. The system's "No such file or
// directory" then means one of the folders in its path.
//
//   throw belay::file_error(path, 0, std::strerror(errno) + belay::missing_folder(path));
//   // "... No such file or directory (there is no folder /data/run7)"
#pragma once

#include <string>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// " (there is no folder /where)" with the topmost folder of `path` that does not exist; "" where all of them do. It is
/// appended to the system's message.
[[nodiscard]] BELAY_DECL std::string missing_folder(const std::string& path);

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/core/missing_folder.ipp"  // IWYU pragma: export
#endif
