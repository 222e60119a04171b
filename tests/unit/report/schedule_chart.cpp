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
