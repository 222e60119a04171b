// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/report/text_buffer.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

namespace {

std::array<char, 4096> room;

}  // namespace

TEST_CASE("a line reads back as the values that were put in") {
  belay::json_line line(room);
  const std::array<std::uint64_t, 3> many{0, 1, std::numeric_limits<std::uint64_t>::max()};
  line.field("text", "a \"quoted\"\\ \n\x01 \xC3\xA9").field("yes", true).field("no", false);
  line.field("least", std::numeric_limits<std::int64_t>::min()).null_field("nothing");
  line.open_object("inner").array("many", std::span<const std::uint64_t>(many)).open_object("deeper").close().close();
  line.open_array("table").row(std::span(many).first(2)).row(std::span(many).first(0)).element_of_array(7).close();
  const std::string text(line.finish());
  CHECK(text.find('\n') == text.size() - 1);
  const auto read = nlohmann::json::parse(text);
  CHECK(read["text"] == "a \"quoted\"\\ \n\x01 \xC3\xA9");
  CHECK(read["yes"] == true);
  CHECK(read["no"] == false);
  CHECK(read["least"] == std::numeric_limits<std::int64_t>::min());
  CHECK(read["nothing"].is_null());
  CHECK(read["inner"]["many"] == nlohmann::json(many));
  CHECK(read["inner"]["deeper"] == nlohmann::json::object());
  CHECK(read["table"] == nlohmann::json::parse("[[0,1],[],7]"));
}

TEST_CASE("numbers read back bit for bit and what is no number becomes null") {
  std::mt19937_64 random(1);
  belay::json_line line(room);
  for (int i = 0; i < 10'000; ++i) {
    const std::uint64_t bits = random();
    double value = 0;
    std::memcpy(&value, &bits, sizeof value);
    line.begin();
    const auto read = nlohmann::json::parse(line.field("x", value).finish());
    if (value - value != 0) {
      CHECK(read["x"].is_null());
    } else {
      REQUIRE(read["x"].get<double>() == value);
    }
  }
  line.begin();
  line.field("a", std::int8_t{-128}).field("b", std::uint8_t{255}).field("c", std::numeric_limits<int>::min());
  CHECK(line.field("d", 0U).field("e", -0.0).finish() == "{\"a\":-128,\"b\":255,\"c\":-2147483648,\"d\":0,\"e\":-0}\n");
  line.begin();
  CHECK(line.field("x", 0.1F).field("y", std::numeric_limits<double>::infinity()).finish() ==
        "{\"x\":0.1,\"y\":null}\n");
}

TEST_CASE("text may come as any kind of string") {
  belay::json_line line(room);
  const std::string text = "text";
  const char* const pointer = "pointer";
  const std::array<std::string, 2> many{"a", "b"};
  line.field("x", text).field("y", pointer).array("z", std::span<const std::string>(many));
  line.open_array("w").element_of_array(text).element_of_array("literal").close();
  CHECK(line.finish() == "{\"x\":\"text\",\"y\":\"pointer\",\"z\":[\"a\",\"b\"],\"w\":[\"text\",\"literal\"]}\n");
}

TEST_CASE("a name with bytes that are no UTF-8 makes a line that can be parsed") {
  belay::json_line line(room);
  const auto read = nlohmann::json::parse(line.field("na\xffme", "\x80").field("next", 1).finish());
  CHECK(read["na\xef\xbf\xbdme"] == "\xef\xbf\xbd");
  CHECK(read["next"] == 1);
}

TEST_CASE("a line that does not fit, is left open or closes too much is a usage error") {
  std::array<char, 8> little;
  belay::json_line line(little);
  CHECK_THROWS_WITH_AS(static_cast<void>(line.field("a", 12).finish()),
                       doctest::Contains("9 bytes was put into room for 8"), belay::usage_error);
  line.begin();
  CHECK(line.field("a", 1).finish() == "{\"a\":1}\n");
  line.begin();
  line.open_array("a");
  CHECK_THROWS_AS(static_cast<void>(line.finish()), belay::usage_error);
  line.close();
  CHECK_THROWS_AS(line.close(), belay::usage_error);
}
