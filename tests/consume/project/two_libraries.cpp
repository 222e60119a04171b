// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Two shared libraries that each hold a core of Belay, in one program.
int first();
int second();

int main() { return first() + second(); }
