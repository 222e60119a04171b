// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which process something belongs to. A forked child of a rank has a copy of all that the rank has, shared memory and
// sockets included, and is no rank: it must not speak for it.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// The process in which it was made. `here()` costs a load: the kernel wipes the page in a forked child.
class own_process {
 public:
  own_process() noexcept : number_(::getpid()), bytes_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))) {
    void* const page = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return;
    if (::madvise(page, bytes_, MADV_WIPEONFORK) != 0) {  // a kernel before 4.14
      ::munmap(page, bytes_);
      return;
    }
    mark_ = static_cast<volatile unsigned char*>(page);
    *mark_ = 1;
  }
  own_process(const own_process&) = delete;
  own_process& operator=(const own_process&) = delete;
  ~own_process() {
    if (mark_ != nullptr) ::munmap(const_cast<unsigned char*>(mark_), bytes_);
  }

  /// False in a forked child.
  [[nodiscard]] bool here() const noexcept { return mark_ != nullptr ? *mark_ != 0 : ::getpid() == number_; }
  [[nodiscard]] pid_t number() const noexcept { return number_; }

 private:
  pid_t number_;
  std::size_t bytes_;
  volatile unsigned char* mark_ = nullptr;
};

/// A forked child has come to the end of a rank's body, which the rank itself will return from: says so and ends it,
/// without anything that its parent will still do.
[[noreturn]] inline void end_forked_child(int rank, const char* problem) noexcept {
  std::fprintf(stderr,
               "belay: a forked child of rank %d has left the body%s%s; it is no rank and is ended here (call exec or "
               "_exit in a child)\n",
               rank, *problem == '\0' ? "" : " by an exception: ", problem);
  ::_exit(1);
}

}  // namespace belay::inline BELAY_ABI
