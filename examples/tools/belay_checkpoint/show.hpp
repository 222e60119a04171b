// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a manifest says, for people and for programs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "belay/core/printable.hpp"
#include "belay/core/view.hpp"
#include "belay/train/checkpoint.hpp"
#include "tools/belay_checkpoint/contents.hpp"
#include "tools/text_table.hpp"

namespace belay_checkpoint {

using nlohmann::ordered_json;

/// One line of a list of checkpoints; one whose manifest is damaged has `problem` alone.
struct listed_checkpoint {
  std::string folder;
  belay::manifest content;
  std::string problem = {};
};

/// "1 tensor", "2 tensors".
[[nodiscard]] inline std::string counted(std::uint64_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

/// Nine digits: all that a float holds.
[[nodiscard]] inline std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

[[nodiscard]] inline ordered_json json_of(const belay::axes& mesh) {
  return {{"pipeline", mesh.pipeline},
          {"data", mesh.data},
          {"expert", mesh.expert},
          {"tensor", mesh.tensor},
          {"shard_group", mesh.shards()}};
}

/// Step, bytes and mesh of each.
[[nodiscard]] inline std::string list_text(const std::vector<listed_checkpoint>& all) {
  tools::text_table table;
  table.add({"step", "bytes", "mesh", "folder"});
  for (const listed_checkpoint& each : all) {
    if (each.problem.empty())
      table.add({std::to_string(each.content.step), std::to_string(bytes_of(each.content)), each.content.mesh.text(),
                 belay::printable(each.folder)});
    else
      table.add({"?", "?", "manifest is damaged", belay::printable(each.folder)});
  }
  return table.text();
}
[[nodiscard]] inline ordered_json list_json(const std::vector<listed_checkpoint>& all) {
  ordered_json out = ordered_json::array();
  for (const listed_checkpoint& each : all) {
    if (each.problem.empty())
      out.push_back({{"folder", each.folder},
                     {"step", each.content.step},
                     {"bytes", bytes_of(each.content)},
                     {"mesh", json_of(each.content.mesh)}});
    else
      out.push_back({{"folder", each.folder}, {"problem", each.problem}});
  }
  return out;
}

/// All that the manifest says.
[[nodiscard]] inline std::string details_text(const std::string& folder, const belay::manifest& of) {
  using belay::printable;
  std::string out = printable(folder) + ": step " + std::to_string(of.step) + " of run " + printable(of.id) +
                    "\nmesh:       " + of.mesh.text() + "\n";
  for (std::size_t i = 0; i < of.optimizers.size(); ++i) {
    out += "optimizer:  " + std::to_string(of.optimizers[i].steps) + " steps";
    for (const auto& [name, value] : of.optimizers[i].settings)
      out += ", " + printable(name) + " " + number_text(value);
    out += "\n";
  }
  for (const auto& [name, text] : of.states)
    out += "state:      " + printable(name) + ", " + std::to_string(text.size()) +
           " bytes: " + belay::printable_start(text, 60) + "\n";
  out += "bytes:      " + std::to_string(bytes_of(of));
  for (const auto& [part, bytes] : bytes_by_part(of)) out += ", " + printable(part) + " " + std::to_string(bytes);
  tools::text_table files;
  files.add({"file", "bytes"});
  for (const belay::manifest_file& each : of.files) files.add({printable(each.name), std::to_string(each.bytes)});
  tools::text_table tensors;
  tensors.add({"tensor", "shape", "part", "dtype", "box", "elements of it", "file", "byte"});
  for (const belay::manifest_tensor& tensor : of.tensors) {
    std::string name = printable(tensor.name), shape = belay::shape_text(tensor.shape);
    for (const std::string& part : parts_of(tensor)) {
      std::string shown = printable(part);
      for (const belay::manifest_piece& each : tensor.pieces) {
        if (each.part != part) continue;
        const std::string range = std::to_string(each.first) + ":" + std::to_string(each.first + each.count);
        tensors.add({name, shape, shown, std::string(belay::safetensors::name(each.type)), each.box.text(), range,
                     printable(of.files[each.file].name), std::to_string(each.begin)});
        name = shape = shown = "";  // once
      }
    }
    if (!name.empty()) tensors.add({name, shape, "none"});
  }
  return out + "\n\n" + files.text() + "\n" + tensors.text();
}
[[nodiscard]] inline ordered_json details_json(const std::string& folder, const belay::manifest& of) {
  ordered_json out{
      {"folder", folder}, {"step", of.step}, {"id", of.id}, {"mesh", json_of(of.mesh)}, {"bytes", bytes_of(of)}};
  out["bytes_by_part"] = ordered_json::object();
  for (const auto& [part, bytes] : bytes_by_part(of)) out["bytes_by_part"][part] = bytes;
  out["optimizers"] = ordered_json::array();
  for (const belay::manifest_optimizer& each : of.optimizers) {
    ordered_json settings = ordered_json::object();
    for (const auto& [name, value] : each.settings) settings[name] = value;
    out["optimizers"].push_back({{"steps", each.steps}, {"settings", settings}});
  }
  out["states"] = ordered_json::array();
  for (const auto& [name, text] : of.states) out["states"].push_back({{"name", name}, {"text", text}});
  out["files"] = ordered_json::array();
  for (const belay::manifest_file& each : of.files)
    out["files"].push_back({{"name", each.name}, {"bytes", each.bytes}});
  out["tensors"] = ordered_json::array();
  for (const belay::manifest_tensor& tensor : of.tensors) {
    ordered_json pieces = ordered_json::array();
    for (const belay::manifest_piece& each : tensor.pieces)
      pieces.push_back({{"part", each.part},
                        {"dtype", belay::safetensors::name(each.type)},
                        {"box", each.box.text()},
                        {"first", each.first},
                        {"count", each.count},
                        {"file", of.files[each.file].name},
                        {"begin", each.begin},
                        {"bytes", each.bytes()}});
    out["tensors"].push_back({{"name", tensor.name}, {"shape", tensor.shape}, {"pieces", pieces}});
  }
  return out;
}

}  // namespace belay_checkpoint
