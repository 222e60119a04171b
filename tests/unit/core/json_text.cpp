// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/core/json_text.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>

namespace {

std::string json(std::string_view text) {
  std::string out;
  belay::append_json(out, text);
  return out;
}

}  // namespace

TEST_CASE("text that needs no escape stands in quotes as it is") {
  CHECK(json("") == "\"\"");
  CHECK(json("gr\u00f6\u00dfe \u65e5\u672c \U0001F600 'x' /") == "\"gr\u00f6\u00dfe \u65e5\u672c \U0001F600 'x' /\"");
}

TEST_CASE("quotes, backslashes and control characters are escaped") {
  CHECK(json("a\"b\\c") == "\"a\\\"b\\\\c\"");
  CHECK(json(std::string_view("\0\x1f\n\x7f.", 5)) == "\"\\u0000\\u001f\\u000a\\u007f.\"");
}

TEST_CASE("each byte that is no UTF-8 becomes U+FFFD, and what follows it stays") {
  const std::string repaired = "\xef\xbf\xbd";
  CHECK(json("a\xff" "b\"") == "\"a" + repaired + "b\\\"\"");
  CHECK(json("\xe2\x80") == "\"" + repaired + repaired + "\"");
  CHECK(json("\xed\xa0\x80") == "\"" + repaired + repaired + repaired + "\"");
}

TEST_CASE("any bytes give a text that a JSON reader takes") {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string text(random() % 12, ' ');
    for (char& c : text) c = static_cast<char>(random());
    const auto read = nlohmann::json::parse(json(text));
    if (belay::utf8_length(text) == text.size()) CHECK(read == text);
  }
}
