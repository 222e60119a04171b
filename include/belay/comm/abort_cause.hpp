// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Why a world stopped, and the error that calls get from then on. The same on all backends.
// IWYU pragma: private, include "belay/comm.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "belay/comm/fingerprint.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// Why a world stopped.
struct abort_cause {
  comm_fault fault = comm_fault::revoked;
  std::vector<int> culprits;  // ranks of the world
  std::string message;
  std::string there;  // where a culprit called
  int signal = 0;
  int exit_code = -1;
  error_kind thrown = error_kind::none;
  std::uint64_t at_us = 0;    // when, by the clock of the rank that reports
  bool process_gone = false;  // of a rank: what waits for all of them does not end
};

/// One call as its rank sees it: what its error says of this side.
struct call_site {
  operation what = operation::none;
  std::uint32_t group = 0;
  std::uint64_t number = 0;
  std::size_t bytes = 0;
  where at;

  /// "all_reduce #3"
  [[nodiscard]] std::string text() const { return std::string(name(what)) + " #" + std::to_string(number); }
};

/// Throws the cause as an error of this call.
[[noreturn, gnu::cold]] BELAY_DECL void raise_cause(abort_cause why, const call_site& mine, double seconds_waited);

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/abort_cause.ipp"  // IWYU pragma: export
#endif
