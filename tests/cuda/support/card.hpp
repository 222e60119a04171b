// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdlib>

namespace test {

/// What a program for a card ends with where none answers, which shows only that it compiles and links: 4, as any
/// backend_error that reaches the end of a program. ctest asks for another code by BELAY_WITHOUT_CARD.
inline int code_without_card() {
  const char* const asked = std::getenv("BELAY_WITHOUT_CARD");
  return asked != nullptr ? std::atoi(asked) : 4;
}

}  // namespace test
