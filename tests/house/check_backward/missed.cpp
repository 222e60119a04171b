// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "handle.hpp"

int main(int count, char**) {
  auto hidden = forward();
  auto forgotten = forward();
  std::move(hidden).backward();
  if (count > 1) std::move(forgotten).backward();
}
