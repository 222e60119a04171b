// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What `diff` has found, for people and for programs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "belay/core/printable.hpp"
#include "tools/belay_checkpoint/diff.hpp"
#include "tools/belay_checkpoint/show.hpp"
#include "tools/text_table.hpp"

namespace belay_checkpoint {

/// "[3, 17]".
[[nodiscard]] inline std::string coordinates_text(const std::vector<std::uint64_t>& of) {
  std::string out = "[";
  for (const std::uint64_t each : of) out += (out.size() > 1 ? ", " : "") + std::to_string(each);
  return out + "]";
}

[[nodiscard]] inline std::string text_of(const difference& of) {
  using belay::printable;
  if (of.empty()) return "equal: " + std::to_string(of.compared) + " numbers were compared\n";
  std::string out;
  for (const std::string& each : of.others) out += each + "\n";
  tools::text_table table;
  for (const tensor_difference& each : of.tensors) {
    const std::string tensor = printable(each.tensor) + (each.part.empty() ? "" : ", " + printable(each.part));
    std::string how;
    if (each.differing > 0) {
      const largest_difference& most = *each.largest;
      how = std::to_string(each.differing) + " of " + std::to_string(each.elements) + " differ, by " +
            (most.has_amount() ? number_text(most.amount()) : "inf") + " at element " + std::to_string(most.element) +
            " " + coordinates_text(most.coordinates) + ": " + number_text(most.a) + " and " + number_text(most.b);
    }
    table.add({tensor, each.what + (each.what.empty() || how.empty() ? "" : "; ") + how});
  }
  return out + table.text();
}

[[nodiscard]] inline ordered_json json_of(const difference& of) {
  ordered_json tensors = ordered_json::array();
  for (const tensor_difference& each : of.tensors) {
    ordered_json one{{"tensor", each.tensor}};
    if (!each.part.empty()) one["part"] = each.part;
    if (!each.what.empty()) one["what"] = each.what;
    if (each.differing > 0) {
      const largest_difference& most = *each.largest;
      one["elements"] = each.elements;
      one["differing"] = each.differing;
      const auto number = [](double value) { return belay::is_finite(value) ? ordered_json(value) : ordered_json(); };
      one["largest"] = {{"amount", most.has_amount() ? number(most.amount()) : ordered_json()},
                        {"element", most.element},
                        {"coordinates", most.coordinates},
                        {"a", number(most.a)},
                        {"b", number(most.b)}};
    }
    tensors.push_back(one);
  }
  return {{"equal", of.empty()}, {"compared", of.compared}, {"others", of.others}, {"tensors", tensors}};
}

}  // namespace belay_checkpoint
