// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "handle.hpp"

int main() {
  auto hidden = forward();
  std::move(hidden).backward();
#ifdef __clang__
  this is not for Clang;
#endif
}
