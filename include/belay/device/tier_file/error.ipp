// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The errors of a tier's file, in words.
#pragma once

#include <sys/statvfs.h>

#include "belay/core/unique_fd.hpp"
#include "belay/device/tier_file/error.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL auto tier_file_error::with_free(const std::string& directory, details what) -> details {
  struct statvfs facts{};
  if (what.fault == tier_file_fault::full && ::statvfs(directory.c_str(), &facts) == 0)
    what.free = static_cast<std::uint64_t>(facts.f_bavail) * facts.f_frsize;
  return what;
}

BELAY_DECL std::string tier_file_error::text(const details& d) {
  std::string message = "tier file: cannot ";
  message += name(d.operation);
  if (d.operation == tier_file_operation::allocate) message += " " + std::to_string(d.bytes) + " bytes";
  if (d.operation == tier_file_operation::read || d.operation == tier_file_operation::write)
    message += " " + std::to_string(d.bytes) + " bytes from byte " + std::to_string(d.offset) + " on, " +
               std::to_string(d.done) + " are done";
  message += ": ";
  if (d.fault == tier_file_fault::truncated)
    message += "the file ends there, it was truncated";
  else if (d.fault == tier_file_fault::stalled)
    message += "the system takes less than a block of the rest";
  else if (d.code != 0)
    message += error_text(d.code);
  message += d.more;
  if (d.fault == tier_file_fault::full) {
    if (d.free) message += ", " + std::to_string(*d.free) + " bytes are free";
    message += "; take a folder of a disk with more room, or offload less";
  } else if (d.code == EFBIG) {
    message += "; raise the limit on files (ulimit -f), or offload less";
  } else if (d.operation == tier_file_operation::open && !is_shortage(d.code)) {
    message += ": no file can be made in this folder; take one of a disk in which this user may make files";
  }
  return message;
}

}  // namespace belay::inline BELAY_ABI
