# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# What a build of the tests can be asked for. tests/run asks for it.
option(BELAY_TEST_STATIC "Also the tests that call the compilers themselves: compile_fail, house, consume" ON)
option(BELAY_TEST_CUDA "Build tests/cuda with nvcc" OFF)
option(BELAY_TEST_EVERY_COMPILER "What must not compile is tried with every compiler, not only where one alone sees it; the backend's headers stand alone" OFF)
set(BELAY_TEST_BATCH 1 CACHE STRING "How many sources of one room a program takes, at most: what they include is compiled once for all of them")
option(BELAY_TEST_PRECOMPILED "The compiler reads the headers once for all tests that are compiled alike; not beside ccache" OFF)
set(BELAY_TEST_ROOMS "." CACHE STRING "Only the tests of sources whose name matches")
set(BELAY_TEST_READ "" CACHE STRING "Sources whose name matches are read by the compiler, for its warnings, and not run: another leg of tests/run runs them")
set(BELAY_TEST_OPTIMIZED "^laws/|^unit/model/(gradients|matrix)" CACHE STRING "Debug: the tests that are optimized nevertheless")
set(BELAY_TEST_TIMEOUT 600 CACHE STRING "Seconds a test may take")
option(BELAY_TEST_FUZZ "tests/fuzz with libFuzzer; without, each target is given its corpus once" OFF)
option(BELAY_TEST_CORPUS "tests/fuzz at all: where a leg with sanitizers gives the same targets the same bytes, another one need not" ON)
set(BELAY_TEST_FUZZ_SECONDS 300 CACHE STRING "How long libFuzzer tries a target")
set(BELAY_TEST_CUDA_SANITIZER "" CACHE STRING "A tool of compute-sanitizer that runs tests/cuda: memcheck, racecheck, synccheck")
