// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "collectives/rules_text.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>

using belay::host::algorithm;
using belay::host::copy_table;

namespace {

std::string line_with(const std::string& text, const std::string& word) {
  const std::size_t at = text.find("\n  " + word);
  if (at == std::string::npos) return "";
  return text.substr(at + 1, text.find('\n', at + 1) - at - 1);
}

}  // namespace

TEST_CASE("the rules name an algorithm for every operation and size") {
  const std::string text = bench::rules_text(2, algorithm::automatic, copy_table());
  const std::string all_reduce = line_with(text, "all_reduce");
  CHECK(all_reduce.find("flag_line") < all_reduce.find("eager_buffer"));
  CHECK(all_reduce.find("eager_buffer") < all_reduce.find("push"));
  for (const char* what : {"reduce_scatter,", "all_gather,", "broadcast,", "reduce,", "gather,", "scatter,", "copy"}) {
    CAPTURE(what);
    CHECK(line_with(text, what) != "");
  }
  const std::string forced = bench::rules_text(2, algorithm::staged, copy_table());
  CHECK(forced.find("BELAY_ALGORITHM=staged") != std::string::npos);
  CHECK(line_with(forced, "all_reduce").find("push") == std::string::npos);
}
