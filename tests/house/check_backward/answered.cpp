// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "handle.hpp"
#include "in_folder.hpp"

static_assert(sizeof(ANSWER) == sizeof("forty two") && OTHER == 2 && in_folder);

int main() {
  auto hidden = forward();
  std::move(hidden).backward();
}
