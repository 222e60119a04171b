// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// train_moe_flags: prints the help of train_moe, or what it refuses in its flags, and ends as it would; for flags that
// it takes with 0, and nothing runs. It is built much sooner than the trainer.
#include <cstdio>
#include <exception>

#include "input/problem_text.hpp"
#include "train_moe/command_line.hpp"

int main(int argc, char** argv) {
  try {
    int exit_code = 0;
    static_cast<void>(train_moe::parse(argc, argv, exit_code));
    return exit_code;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "train_moe: %s\n", input::problem_text(problem).c_str());
    return 2;
  }
}
