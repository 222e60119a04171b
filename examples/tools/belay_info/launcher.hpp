// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What launchers have left in the environment of this process, and what Belay makes of it.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "belay/comm/launcher.hpp"
#include "tools/belay_info/facts.hpp"

namespace belay_info {

[[nodiscard]] inline bool is_of_a_launcher(std::string_view name) {
  for (const std::string_view prefix : {"BELAY_", "OMPI_", "PMI_", "PMIX_", "SLURM_"}) {
    if (name.starts_with(prefix)) return true;
  }
  if (name == "MASTER_ADDR" || name == "MASTER_PORT") return true;  // torchrun's, beside those of its ranks
  for (const belay::launcher_variables& from : belay::known_launchers) {
    if (name == from.rank || name == from.size) return true;
    if (from.local_rank != nullptr && name == from.local_rank) return true;
    if (from.local_size != nullptr && name == from.local_size) return true;
  }
  return false;
}

/// The value of a variable of this name is for nobody's eyes: reports are sent around.
[[nodiscard]] inline bool is_secret(std::string_view name) {
  for (const std::string_view part : {"TOKEN", "SECRET", "PASSWORD", "JWT", "KEY", "CRED", "AUTH", "PASSPHRASE"}) {
    if (name.find(part) != std::string_view::npos) return true;
  }
  return false;
}

/// Which rank of how many Belay takes this process for, or why it refuses what it finds.
[[nodiscard]] inline section launcher() {
  std::optional<std::string> found, problem;
  try {
    found = belay::find_launcher().text();
  } catch (const std::exception& refused) {
    problem = refused.what();
  }
  return {"launcher",
          {{"found", json_of(found), found ? belay::printable(*found) : "nothing that makes sense"},
           {"problem", json_of(problem), problem ? belay::printable(*problem) : "-"}}};
}

/// The variables themselves, by name.
[[nodiscard]] inline section environment() {
  std::map<std::string, std::string> variables;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || !is_of_a_launcher(text.substr(0, equals))) continue;
    const std::string name(text.substr(0, equals));
    variables[name] = is_secret(name) ? "(not shown)" : text.substr(equals + 1);
  }
  section out{"environment", {}};
  for (const auto& [name, value] : variables) out.facts.push_back(text_fact(name, value));
  return out;
}

}  // namespace belay_info
