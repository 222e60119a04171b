// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Errors of descriptors in words.
#pragma once

#include <sys/resource.h>

#include <cstring>

#include "belay/core/unique_fd.hpp"

namespace belay::inline BELAY_ABI {

[[gnu::cold]] BELAY_DECL std::string descriptor_limit_text() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return "RLIMIT_NOFILE of this process is not known";
  return "RLIMIT_NOFILE of this process is " +
         (limit.rlim_cur == RLIM_INFINITY ? std::string("unlimited") : std::to_string(limit.rlim_cur));
}

[[gnu::cold]] BELAY_DECL std::string error_text(int error) {
  const std::string words = std::strerror(error);
  if (error == EMFILE) return words + ": " + descriptor_limit_text();
  if (error == ENFILE) return words + ": /proc/sys/fs/file-max of this machine is reached";
  return words;
}

}  // namespace belay::inline BELAY_ABI
