// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The smallest handle with the library's annotations, so that this test stands on core/config.hpp alone.
#pragma once

#include <utility>

#include "belay/core/config.hpp"

class BELAY_OBLIGATION handle {
 public:
  BELAY_OPENS handle() {}
  handle(handle&&) = default;
  BELAY_IF_DISCHARGED ~handle() {}
  BELAY_DISCHARGES void backward() && {}
};

[[nodiscard]] BELAY_OPENS inline handle forward() { return handle{}; }
