// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/report/schedule_chart.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "belay/parallel/schedule.hpp"

namespace schedule = belay::schedule;
using schedule::action;
using schedule::action_kind;

namespace {

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a table is drawn as text") {
  CHECK(schedule::draw_text(schedule::one_f_one_b(2, 2)) ==
        "1f1b: 2 stages, 2 micro-batches, 9 units, idle 33.33 %\n"
        "stage 0 | F0 F1 .  .  B0 -  .  B1 -\n"
        "stage 1 | .  F0 B0 -  F1 B1 -  .  .\n");
}

TEST_CASE("a table is drawn as an SVG with a box for each compute") {
  const auto table =
      schedule::make_table("a<b>&c", 2,
                           {{action::compute(action_kind::forward, 0), action::compute(action_kind::forward, 1),
                             action::compute(action_kind::backward, 0), action::compute(action_kind::backward, 1)}});
  const std::string svg = schedule::draw_svg(table);
  CHECK(holds(svg, "<svg xmlns="));
  CHECK(holds(svg, "a&lt;b&gt;&amp;c"));
  std::size_t boxes = 0;
  for (std::size_t at = svg.find("<title>"); at != std::string::npos; at = svg.find("<title>", at + 1)) ++boxes;
  CHECK(boxes == 4);
  CHECK(svg.substr(svg.size() - 7) == "</svg>\n");
  CHECK_THROWS_AS((void)schedule::draw_svg(table, std::vector<double>{}, std::vector<double>{}), belay::usage_error);
}

TEST_CASE("a chart has a time and a colour for each half of a backward, and names those that it has") {
  const auto count = [](const std::string& text, const std::string& part) {
    std::size_t found = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  };
  const auto table = schedule::named_table("zb-h1", 2, 4);
  const std::string svg = schedule::draw_svg(table, schedule::equal_costs{{3, 2, 1}, 0});
  CHECK(count(svg, "<title>") == 2 * 3 * 4);
  for (const std::string kind : {"forward", "input gradient", "weight gradient"}) {
    CAPTURE(kind);
    CHECK(count(svg, ", " + kind + " of micro-batch") == 8);
    CHECK(count(svg, ">" + kind + "</text>") == 1);
  }
  CHECK(count(svg, ">backward</text>") == 0);
  CHECK(holds(svg, "prefers-color-scheme:dark"));
  // Each box as wide as its time: the first forward is the longest.
  const double all = 3 * 4 + 2 * 4 + 4 + (3 + 2 - 1);
  CHECK(holds(svg, "x=\"70.00\" y=\"36.00\" width=\"" + schedule::two_digits(960 * 3 / all) + "\""));
  CHECK(count(schedule::draw_svg(schedule::one_f_one_b(2, 4)), ">backward</text>") == 1);
}
