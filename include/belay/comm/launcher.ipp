// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Reading what launchers say.
#pragma once

#include <cstdlib>

#include "belay/comm/launcher.hpp"
#include "belay/core/error.hpp"
#include "belay/core/process.hpp"

namespace belay::inline BELAY_ABI {

/// Reads one launcher's set from the environment.
class launch_reader {
 public:
  explicit launch_reader(environment variable) noexcept : variable_(variable) {}

  [[nodiscard, gnu::cold]] bool is_set(const char* name) const {
    const char* const text = variable_(name);
    return text != nullptr && *text != '\0';
  }

  /// Throws input_error, naming the variable, for a set that is incomplete or impossible.
  [[nodiscard, gnu::cold]] launcher_environment read(const launcher_variables& from) const {
    launcher_environment out;
    out.launcher = from.launcher;
    out.rank = number(from, from.rank, 0);
    out.size = number(from, from.size, 1);
    if (out.rank >= out.size) {
      throw input_error(std::string(from.rank) + "=" + std::to_string(out.rank) + " is no rank of " + from.size + "=" +
                        std::to_string(out.size));
    }
    if (from.local_rank != nullptr && is_set(from.local_rank)) out.local_rank = number(from, from.local_rank, 0);
    if (from.local_size != nullptr && is_set(from.local_size)) out.local_size = number(from, from.local_size, 1);
    if (out.local_size > out.size || (out.local_size > 0 && out.local_rank >= out.local_size)) {
      throw input_error(std::string(from.local_rank) + "=" + std::to_string(out.local_rank) + " of " + from.local_size +
                        "=" + std::to_string(out.local_size) + " ranks of this host is impossible with " + from.size +
                        "=" + std::to_string(out.size));
    }
    return out;
  }

 private:
  [[nodiscard, gnu::cold]] int number(const launcher_variables& from, const char* name, long least) const {
    if (!is_set(name)) {
      throw input_error(std::string(name) + " is not set, but other variables of " + from.launcher +
                        " are; BELAY_LAUNCHER=none starts a single rank");
    }
    const char* const text = variable_(name);
    constexpr long most = 1 << 20;
    char* end = nullptr;
    const long read = std::strtol(text, &end, 10);
    if (*end != '\0' || read < least || read > most) {
      throw input_error(std::string(name) + "=" + text + ": expected a whole number from " + std::to_string(least) +
                        " to " + std::to_string(most));
    }
    return static_cast<int>(read);
  }

  environment variable_;
};

[[gnu::cold]] BELAY_DECL std::string launcher_environment::text() const {
  return std::string(launcher) + ": rank " + std::to_string(rank) + " of " + std::to_string(size);
}

[[gnu::cold]] BELAY_DECL launcher_environment find_launcher(environment variable) {
  const launch_reader reader(variable);
  if (reader.is_set("BELAY_LAUNCHER")) {
    const std::string name = variable("BELAY_LAUNCHER");
    std::string known = "none, slurm";
    if (name == "none") return {};
    if (name == slurm_variables.launcher) return reader.read(slurm_variables);
    for (const launcher_variables& from : known_launchers) {
      if (name == from.launcher) return reader.read(from);
      known += std::string(", ") + from.launcher;
    }
    throw input_error("BELAY_LAUNCHER=" + name + ": there are " + known);
  }
  launcher_environment found;
  bool any = false;
  for (const launcher_variables& from : known_launchers) {
    if (!reader.is_set(from.rank) && !reader.is_set(from.size)) continue;
    const launcher_environment here = reader.read(from);
    if (&from == &known_launchers[0]) return here;  // our own knows what it started
    if (any && (here.rank != found.rank || here.size != found.size)) {
      throw input_error("two launchers disagree: " + found.text() + ", " + here.text() +
                        "; BELAY_LAUNCHER=name chooses one");
    }
    if (!any) found = here;
    any = true;
  }
  // The shell of an allocation knows the number of tasks without being one.
  if (!any && reader.is_set(slurm_variables.rank)) return reader.read(slurm_variables);
  // PMIx tells a process its rank by a variable, but the number of ranks only by calls of its library.
  if (!any && reader.is_set("PMIX_RANK")) {
    throw input_error(
        "PMIX_RANK is set, but no variable tells the number of ranks: set PMI_RANK and PMI_SIZE too; "
        "BELAY_LAUNCHER=none starts a single rank");
  }
  return found;
}

[[gnu::cold]] BELAY_DECL launcher_environment find_launcher() {
  return find_launcher([](const char* name) { return environment_variable(name); });
}

}  // namespace belay::inline BELAY_ABI
