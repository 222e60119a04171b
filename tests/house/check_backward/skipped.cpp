// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "handle.hpp"

#define TWICE(x) \
  x; \
  x

int main() {
  auto skipped = forward();
#ifndef SKIP
  std::move(skipped).backward();
#endif
}
