// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What `verify` has found, for people and for programs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "belay/core/printable.hpp"
#include "tools/belay_checkpoint/show.hpp"
#include "tools/belay_checkpoint/verify.hpp"

namespace belay_checkpoint {

/// "value of tensor wte, value of tensor wpe and 3 more".
[[nodiscard]] inline std::string text_of(const std::vector<tensor_part>& parts) {
  constexpr std::size_t most = 3;
  std::string out;
  for (std::size_t i = 0; i < std::min(parts.size(), most); ++i)
    out += (i == 0 ? "" : ", ") + belay::printable(parts[i].part) + " of tensor " + belay::printable(parts[i].tensor);
  if (parts.size() > most) out += " and " + std::to_string(parts.size() - most) + " more";
  return out;
}

/// One line for a sound checkpoint; for another one a line for each fault below it.
[[nodiscard]] inline std::string text_of(const verdict& of) {
  const std::size_t count = of.faults.size();
  std::string out = belay::printable(of.folder) + ": " + (count == 0 ? "sound" : counted(count, "fault")) + ", " +
                    counted(of.tensors, "tensor") + " in " + counted(of.files, "file") + ", " +
                    std::to_string(of.bytes_read) + " bytes read\n";
  for (const fault& each : of.faults) {
    out += "  " + belay::printable(each.file) + " (byte " + std::to_string(each.byte) +
           "): " + belay::printable(each.what);
    if (!each.touches.empty()) out += "; " + text_of(each.touches);
    out += "\n";
  }
  return out;
}

[[nodiscard]] inline nlohmann::ordered_json json_of(const verdict& of) {
  nlohmann::ordered_json faults = nlohmann::ordered_json::array();
  for (const fault& each : of.faults) {
    nlohmann::ordered_json touches = nlohmann::ordered_json::array();
    for (const tensor_part& one : each.touches) touches.push_back({{"tensor", one.tensor}, {"part", one.part}});
    faults.push_back({{"file", each.file}, {"byte", each.byte}, {"what", each.what}, {"touches", touches}});
  }
  return {{"folder", of.folder},   {"step", of.step},   {"sound", of.faults.empty()},
          {"tensors", of.tensors}, {"files", of.files}, {"bytes_read", of.bytes_read},
          {"faults", faults}};
}

}  // namespace belay_checkpoint
