// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// While it lives no file of this process grows beyond so many bytes, and who writes more is told by an error: as a full
// disk.
#pragma once

#include <sys/resource.h>

#include <csignal>

namespace report_test {

class file_size_limit {
 public:
  explicit file_size_limit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit few{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &few);
  }
  file_size_limit(const file_size_limit&) = delete;
  file_size_limit& operator=(const file_size_limit&) = delete;
  ~file_size_limit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_{};
};

}  // namespace report_test
