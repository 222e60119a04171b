// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The page that the kernel wipes in a forked child.
#pragma once

#include <sys/mman.h>

#include <cstdio>

#include "belay/core/own_process.hpp"

namespace belay::inline BELAY_ABI {

[[gnu::cold]] BELAY_DECL own_process::own_process() noexcept
    : number_(::getpid()), bytes_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))) {
  void* const page = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  if (::madvise(page, bytes_, MADV_WIPEONFORK) != 0) {  // a kernel before 4.14
    ::munmap(page, bytes_);
    return;
  }
  mark_ = static_cast<volatile unsigned char*>(page);
  *mark_ = 1;
}

[[gnu::cold]] BELAY_DECL own_process::~own_process() {
  if (mark_ != nullptr) ::munmap(const_cast<unsigned char*>(mark_), bytes_);
}

[[gnu::cold]] BELAY_DECL void end_forked_child(int rank, const char* problem) noexcept {
  std::fprintf(stderr,
               "belay: a forked child of rank %d has left the body%s%s; it is no rank and is ended here (call exec or "
               "_exit in a child)\n",
               rank, *problem == '\0' ? "" : " by an exception: ", problem);
  ::_exit(1);
}

}  // namespace belay::inline BELAY_ABI
