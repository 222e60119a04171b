// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The timeout of the environment.
#pragma once

#include <cstdlib>
#include <string>

#include "belay/comm/checked_timeout.hpp"
#include "belay/core/environment.hpp"
#include "belay/core/finite.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL double timeout_of_environment() {
  const char* text = environment_variable("BELAY_TIMEOUT");
  if (text == nullptr || *text == '\0') return 600;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end != '\0' || !is_finite(seconds) || seconds <= 0) {
    throw input_error("BELAY_TIMEOUT=" + std::string(text) + ": expected seconds, more than 0");
  }
  return seconds;
}

}  // namespace belay::inline BELAY_ABI
