// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/core/where.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <optional>
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

namespace {

struct made {
  explicit made(where from = where::current()) : at(from) {}
  where at;
};

}  // namespace

TEST_CASE("a line of the standard library says so, and how to name the user's") {
  std::optional<made> object;
  object.emplace();
  CHECK(object->at.in_standard_library());
  CHECK(object->at.text().find("belay::where::current() as its last argument") != std::string::npos);
  CHECK(std::make_unique<made>()->at.in_standard_library());
  object.emplace(where::current());
  CHECK(object->at.line == __LINE__ - 1);
  CHECK_FALSE(object->at.in_standard_library());
  CHECK(object->at.text() == std::string(__FILE__) + ":" + std::to_string(object->at.line));
}

TEST_CASE("a site that nobody gave is empty and constant") {
  constexpr where nowhere;
  static_assert(nowhere.line == 0);
  CHECK(nowhere.text() == ":0");
}
