// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Whether something else had this rank's core: the kernel counts how long a thread that could run did not. A sample
// that was disturbed says nothing about what was timed and is taken again.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

namespace bench {

/// Belongs to the thread that made it.
class disturbance_meter {
 public:
  disturbance_meter() : file_(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {}
  disturbance_meter(const disturbance_meter&) = delete;
  disturbance_meter& operator=(const disturbance_meter&) = delete;
  ~disturbance_meter() {
    if (file_ >= 0) ::close(file_);
  }

  /// Microseconds that this thread has waited for a core so far; 0 where the kernel does not tell.
  [[nodiscard]] double us() const noexcept {
    char text[96];
    const ssize_t length = file_ < 0 ? -1 : ::pread(file_, text, sizeof text - 1, 0);
    if (length <= 0) return 0;
    text[length] = '\0';
    char* second = nullptr;
    (void)std::strtod(text, &second);  // the first number is the time it ran
    return std::strtod(second, nullptr) / 1e3;
  }

 private:
  int file_;
};

}  // namespace bench
