// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/core/missing_folder.hpp"

#include <doctest/doctest.h>

using belay::missing_folder;

TEST_CASE("the topmost folder that is not there is named, or what is in its place") {
  CHECK(missing_folder("/nowhere/at/all.json") == " (there is no folder /nowhere)");
  CHECK(missing_folder("/tmp/none-of-belay/all.json") == " (there is no folder /tmp/none-of-belay)");
  CHECK(missing_folder("nowhere/all.json") == " (there is no folder nowhere)");
  CHECK(missing_folder("/dev/null/all.json") == " (/dev/null is no folder)");
}

TEST_CASE("nothing is said where all folders are there") {
  CHECK(missing_folder("all.json").empty());
  CHECK(missing_folder("/all.json").empty());
  CHECK(missing_folder("/tmp//none-of-belay.json").empty());
  CHECK(missing_folder("").empty());
}
