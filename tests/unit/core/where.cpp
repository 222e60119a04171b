// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/core/where.hpp"

#include <doctest/doctest.h>

#include <string>

namespace {

using belay::where;

where called(where at = where::current()) { return at; }

where through_a_function() { return called(); }

}  // namespace

TEST_CASE("a default argument names the caller's line, not the callee's") {
  const where at = called();
  CHECK(at.line == __LINE__ - 1);
  CHECK(std::string(at.file) == __FILE__);
  CHECK(std::string(through_a_function().function) == "through_a_function");
}

TEST_CASE("a site passed on keeps the first caller's line") {
  const where here = where::current();
  CHECK(called(here).line == here.line);
  CHECK(called(here).text() == std::string(__FILE__) + ":" + std::to_string(here.line));
}

TEST_CASE("a site that nobody gave is empty and constant") {
  constexpr where nowhere;
  static_assert(nowhere.line == 0);
  CHECK(nowhere.text() == ":0");
}
