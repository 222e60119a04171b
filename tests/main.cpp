// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The entry point that every test program links; the tests' own files hold test cases only.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
