// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "handle.hpp"

int main() {
  auto hidden = forward();
  std::move(hidden).backward();
}
