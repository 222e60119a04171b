// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a path names: one checkpoint, or a folder of them.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "belay/train/checkpoint.hpp"

namespace belay_checkpoint {

[[nodiscard]] inline std::string manifest_of(const std::string& folder) {
  return folder + "/" + std::string(belay::manifest_name);
}

/// The folders of the committed checkpoints at `path`, ascending by step: itself, or those in it. Throws
/// belay::input_error where there is none, belay::file_error where the system cannot say. What is called like one and
/// is none is told on stderr.
[[nodiscard]] inline std::vector<std::string> checkpoints_at(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  std::error_code error;
  const auto type = std::filesystem::symlink_status(manifest_of(path), error).type();
  if (type == std::filesystem::file_type::none) throw belay::file_error(manifest_of(path), 0, error.message());
  if (type != std::filesystem::file_type::not_found) return {path};
  const belay::checkpoint_folder<> folder(path);
  std::vector<std::string> out;
  const belay::checkpoint_contents found = folder.look();
  for (const std::uint64_t step : found.committed) out.push_back(folder.path_of(step));
  for (const belay::file_error& each : found.left)
    std::fprintf(stderr, "belay-checkpoint: %s\n", belay::printable_what(each).c_str());
  if (out.empty())
    throw belay::input_error(path + ": is no checkpoint, which has a " + std::string(belay::manifest_name) +
                             ", and no folder with one in it");
  return out;
}

/// The one checkpoint at `path`: of a folder of them, the newest.
[[nodiscard]] inline std::string checkpoint_at(const std::string& path) { return checkpoints_at(path).back(); }

}  // namespace belay_checkpoint
