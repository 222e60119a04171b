// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/core/printable.hpp"

#include <doctest/doctest.h>

#include <exception>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>

#include "belay/core/error.hpp"

using belay::printable;
using belay::printable_lines;
using belay::printable_start;

TEST_CASE("what a terminal shows stays as it is") {
  CHECK(printable("").empty());
  CHECK(printable("rank 0: all is well \\ \"quoted\" ~") == "rank 0: all is well \\ \"quoted\" ~");
  CHECK(printable("gr\u00f6\u00dfe \u65e5\u672c \U0001F600 \u00a0") ==
        "gr\u00f6\u00dfe \u65e5\u672c \U0001F600 \u00a0");
}

TEST_CASE("what a terminal obeys is escaped: C0, DEL, C1, separators of lines, marks of direction") {
  CHECK(printable("\x1b[31mred\x1b[0m") == "\\x1b[31mred\\x1b[0m");
  CHECK(printable("one\ntwo\r\tthree") == "one\\ntwo\\r\\tthree");
  CHECK(printable(std::string("\0\x07\x7f", 3)) == "\\x00\\x07\\x7f");
  CHECK(printable("\xc2\x9b"
                  "2J\xc2\x80\xc2\x9f") == "\\u009b2J\\u0080\\u009f");
  CHECK(printable("\u2028\u2029\u202e\u2066\u200f\u061c") == "\\u2028\\u2029\\u202e\\u2066\\u200f\\u061c");
}

TEST_CASE("bytes that are no UTF-8 are repaired, each by itself") {
  const std::string repaired = "\xef\xbf\xbd";
  CHECK(printable("a\xff"
                  "b") == "a" + repaired + "b");
  CHECK(printable("\x9b"
                  "31m") == repaired + "31m");  // the C1 control of an 8-bit terminal
  CHECK(printable("\xe2\x80") == repaired + repaired);
  CHECK(printable("\xc0\xaf") == repaired + repaired);
  CHECK(printable("\xed\xa0\x80") == repaired + repaired + repaired);
}

TEST_CASE("every byte and pair of bytes is shown, and the second time nothing changes") {
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      const std::string once = printable(std::string{static_cast<char>(a), static_cast<char>(b)});
      bool shown = true;
      for (const char c : once) shown = shown && (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
      if (shown && printable(once) == once) continue;
      CAPTURE(a);
      CAPTURE(b);
      CHECK(shown);
      CHECK(printable(once) == once);
    }
  }
}

TEST_CASE("lines stay lines where they are wanted") {
  CHECK(printable_lines("a\x1b\nb\n\nc\r") == "a\\x1b\nb\n\nc\\r");
  CHECK(printable_lines("\n") == "\n");
  CHECK(printable_lines("").empty());
}

TEST_CASE("the start of a long text ends with a whole character") {
  CHECK(printable_start("short", 5) == "short");
  CHECK(printable_start("longer", 5) == "longe...");
  CHECK(printable_start("\u00e4\u00e4\u00e4", 3) == "\u00e4...");
  CHECK(printable_start("\x1b\x1b", 1) == "\\x1b...");
  CHECK(printable_start("", 0).empty());
}

TEST_CASE("errors about what comes from outside are one printable line, and keep the path as it was given") {
  const std::string path = "/tmp/\x1b[31m\n";
  const belay::file_error file(path, 7, "has no tensor a\nbelay: forged");
  CHECK(std::string(file.what()) == "belay: /tmp/\\x1b[31m\\n: has no tensor a\\nbelay: forged (byte 7)");
  CHECK(file.path() == path);
  CHECK(std::string(belay::input_error("--mesh: '\x07'").what()) == "belay: --mesh: '\\x07'");
  belay::comm_error::details said;
  said.operation = "barrier";
  said.message = "rank 1 threw \x1b]0;title\x07";
  said.there = "a\nb.cpp:1";
  CHECK(std::string(belay::comm_error(said).what()) ==
        "belay: revoked in barrier #0 at a\\nb.cpp:1: rank 1 threw \\x1b]0;title\\x07");
}

TEST_CASE("what any exception says can be printed, and keeps its lines") {
  CHECK(belay::printable_what(std::runtime_error("a\nb\x1b")) == "a\nb\\x1b");
  CHECK(belay::printable_what(belay::usage_error("a\nb\x1b", {})) == "belay: a\nb\\x1b");
  struct silent : std::exception {
    [[nodiscard]] const char* what() const noexcept override { return nullptr; }
  };
  CHECK(belay::printable_what(silent()) == "(no text)");
}

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
  CHECK(json("a\xff"
             "b\"") == "\"a" + repaired + "b\\\"\"");
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
