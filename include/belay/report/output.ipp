// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Writing to a descriptor, and what the system says where it cannot be.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>

#include "belay/core/error.hpp"
#include "belay/report/output.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL output::output(std::string path, where at) : path_(std::move(path)), owned_(true) {
  do {
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) fail("cannot be opened for writing", errno, at);
}

BELAY_DECL output::~output() {
  if (owned_ && descriptor_ >= 0) ::close(descriptor_);
}

BELAY_DECL void output::write(std::string_view text, where at) {
  while (!text.empty()) {
    const ssize_t put = ::write(descriptor_, text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("cannot be written", errno, at);
    text.remove_prefix(static_cast<std::size_t>(put));
    written_ += static_cast<std::uint64_t>(put);
  }
}

BELAY_DECL void output::expect_room(std::uint64_t bytes, where at) const {
  struct stat now;
  if (::fstat(descriptor_, &now) != 0 || !S_ISREG(now.st_mode)) return;
  int done = 0;
  do {
    done = ::fallocate(descriptor_, FALLOC_FL_KEEP_SIZE, now.st_size, static_cast<off_t>(bytes));
  } while (done != 0 && errno == EINTR);
  if (done != 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) fail("cannot be written", errno, at);
  if (done == 0 && ::ftruncate(descriptor_, now.st_size) != 0) fail("cannot be cut", errno, at);
}

BELAY_DECL void output::take_back(std::uint64_t bytes, where at) {
  const auto rest = static_cast<off_t>(written_ - bytes);
  if (::ftruncate(descriptor_, rest) != 0 || ::lseek(descriptor_, rest, SEEK_SET) < 0) fail("cannot be cut", errno, at);
  written_ -= bytes;
}

BELAY_DECL void output::fail(const char* what, int number, where at) const {
  const std::string folder = number == ENOENT || number == ENOTDIR ? missing_folder(path_) : "";
  throw file_error(path_, written_, what + (": " + std::generic_category().message(number)) + folder, at);
}

}  // namespace belay::inline BELAY_ABI
