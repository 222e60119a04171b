// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The process that something belongs to. A forked child of a rank has a copy of all that the rank has, shared memory
// and sockets included, but is no rank: it must not act as one.
//
//   const belay::own_process home;
//   if (::fork() == 0) assert(!home.here());
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// The process in which it was made. `here()` costs a load: the kernel wipes the page in a forked child.
class own_process {
 public:
  own_process() noexcept;
  own_process(const own_process&) = delete;
  own_process& operator=(const own_process&) = delete;
  ~own_process();

  /// False in a forked child.
  [[nodiscard]] bool here() const noexcept { return mark_ != nullptr ? *mark_ != 0 : ::getpid() == number_; }
  [[nodiscard]] pid_t number() const noexcept { return number_; }

 private:
  pid_t number_;
  std::size_t bytes_;
  volatile unsigned char* mark_ = nullptr;
};

/// A forked child has come to the end of a rank's body, which the rank itself will return from: prints that and ends
/// the child, without what its parent will still do.
[[noreturn]] BELAY_DECL void end_forked_child(int rank, const char* problem) noexcept;

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/core/own_process.ipp"  // IWYU pragma: export
#endif
