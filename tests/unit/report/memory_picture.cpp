// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/report/memory_picture.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>

namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace

TEST_CASE("the picture has a line, a marked peak and a name for each tier") {
  belay::memory_picture picture({"device", "host <&>"});
  picture.add(0.0, std::array<std::uint64_t, 2>{0, 1024});
  picture.add(1.0, std::array<std::uint64_t, 2>{4096, 1024});
  picture.add(2.0, std::array<std::uint64_t, 2>{2048, 0});
  const std::string svg = picture.svg();
  CHECK(svg.rfind("<svg xmlns=\"http://www.w3.org/2000/svg\"", 0) == 0);
  CHECK(count(svg, "<polyline") == 2);
  CHECK(count(svg, "<circle") == 2);
  // left 90, width 840, top 40, height 310: the peak of the device tier is at half of the time, at the top.
  CHECK(svg.find("points=\"90.0,350.0 510.0,40.0 930.0,195.0") != std::string::npos);
  CHECK(svg.find("<circle cx=\"510.0\" cy=\"40.0\"") != std::string::npos);
  CHECK(svg.find("device: peak 4.0 KiB (4096 bytes)") != std::string::npos);
  CHECK(svg.find("host &lt;&amp;>: peak 1.0 KiB") != std::string::npos);
  CHECK(svg.find("href") == std::string::npos);
}

TEST_CASE("however many samples come, the room stays and no peak is lost") {
  for (std::size_t capacity : {1U, 2U, 7U, 64U}) {
    belay::memory_picture picture({"device"}, capacity);
    for (std::uint64_t i = 0; i < 1000; ++i) {
      picture.add(static_cast<double>(i), std::array<std::uint64_t, 1>{i == 377 ? 1000 : i % 10});
      REQUIRE(picture.size() <= std::max<std::size_t>(2, capacity));
    }
    CHECK(picture.peak(0) == 1000);
    CHECK(picture.size() * picture.samples_each() >= 1000);
    CHECK(picture.svg().find(",40.0 ") != std::string::npos);  // the line itself reaches the top
  }
}

TEST_CASE("samples that become one keep the larger bytes of each tier") {
  belay::memory_picture picture({"device", "host"}, 2);
  picture.add(0.0, std::array<std::uint64_t, 2>{100, 50});
  picture.add(1.0, std::array<std::uint64_t, 2>{0, 100});
  picture.add(2.0, std::array<std::uint64_t, 2>{50, 0});
  CHECK(picture.size() == 2);
  CHECK(picture.samples_each() == 2);
  const std::string svg = picture.svg();
  CHECK(svg.find("points=\"90.0,40.0 930.0,195.0 930.0,195.0\"") != std::string::npos);
  CHECK(svg.find("points=\"90.0,40.0 930.0,350.0 930.0,350.0\"") != std::string::npos);
}

TEST_CASE("a picture without samples can be drawn, and a sample of the wrong size is refused") {
  belay::memory_picture picture({"device", "host"});
  CHECK(picture.svg().find("</svg>") != std::string::npos);
  CHECK_THROWS_AS(picture.add(0, std::array<std::uint64_t, 1>{1}), belay::usage_error);
}
