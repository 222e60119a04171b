// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "sorted.cuh"

int main() { return user::run(); }
