// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Removes the files of jobs that killed processes left.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <string>

#include "belay/backend/host/bootstrap/private_directory.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Removes the sockets and the bootstrap files under `base` whose process is gone; how many. Files of other users, of
/// other pid namespaces, and everything that is written otherwise stay.
BELAY_DECL int remove_stale_files(const std::string& base = base_directory()) noexcept;

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/bootstrap/stale_files.ipp"  // IWYU pragma: export
#endif
