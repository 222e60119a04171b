// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How each rank of a run on processes ended, for programs that go on after a failure.
//
//   const auto ends = belay::host::processes(4).outcomes(train);
//   for (const belay::host::rank_outcome& end : ends) {
//     if (end.how != belay::host::rank_outcome::outcome_kind::returned) std::puts(end.text().c_str());
//   }
#pragma once

#include <cstdint>
#include <string>

#include "belay/core/config.hpp"
#include "belay/core/process.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// How one rank of a world of processes ended.
struct rank_outcome {
  /// How a rank ended: returned, threw, left by `exit`, was killed, or is unknown; `code` is its exit code or signal.
  enum class outcome_kind : std::uint8_t {
    returned,   // its body returned
    threw,      // its body threw; `what` says what
    exited,     // its process exited with `code` in its body
    signalled,  // its process was ended by signal `code`
    unknown,    // its process ended, and only its parent knows how
  };
  outcome_kind how = outcome_kind::unknown;
  int code = 0;
  std::string what;    // of an exception
  std::string result;  // the bytes of what the body returned

  /// "returned", "threw: ...", "exited with code 3", "was ended by SIGKILL (9)"
  [[nodiscard]] std::string text() const {
    switch (how) {
      case outcome_kind::returned: return "returned";
      case outcome_kind::threw: return "threw: " + what;
      case outcome_kind::exited: return "exited with code " + std::to_string(code);
      case outcome_kind::signalled: return "was ended by " + signal_name(code);
      case outcome_kind::unknown: break;
    }
    return "ended";
  }
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
