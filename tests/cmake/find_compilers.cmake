# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# What a user writes is checked with g++ and with Clang in every build tree where both are present:
# belay_test_gcc, belay_test_clang (empty where absent), and the flags that belay::belay adds for each.
find_program(BELAY_TEST_GCC NAMES g++ g++-12 g++-13 g++-14)
find_program(BELAY_TEST_CLANG NAMES clang++-19 clang++-20 clang++-18)

set(belay_test_compilers "")
if(BELAY_TEST_GCC)
  list(APPEND belay_test_compilers gcc)
endif()
if(BELAY_TEST_CLANG)
  list(APPEND belay_test_compilers clang)
else()
  message(STATUS "clang-19 not found: compile_fail and house tests run with g++ only")
endif()
# Joined by spaces, because a list does not survive its way into a test's command line.
list(JOIN BELAY_FLAGS_GNU " " belay_test_command_gcc)
list(JOIN BELAY_FLAGS_CLANG " " belay_test_command_clang)
string(PREPEND belay_test_command_gcc "${BELAY_TEST_GCC} ")
string(PREPEND belay_test_command_clang "${BELAY_TEST_CLANG} ")
