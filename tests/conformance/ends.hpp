// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <string>
#include <vector>

namespace conformance {

// How a run ended of which some bodies failed.
struct ends {
  std::vector<bool> returned;  // true, by rank
  std::string error;           // what a caller of run would have been thrown
};

}  // namespace conformance
