# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# What the house's tests are given, as lists: the compilers present, and the command of each with belay::belay's flags.
cmake_minimum_required(VERSION 3.25)
separate_arguments(compilers UNIX_COMMAND "${compilers}")
separate_arguments(gcc UNIX_COMMAND "${gcc}")
separate_arguments(clang UNIX_COMMAND "${clang}")
