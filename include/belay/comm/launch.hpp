// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which rank of how many this process is. Launchers say it in environment variables, each in its own; several sets
// can be there at once (mpirun inside a Slurm allocation), and two that disagree must not be guessed between.
#pragma once

#include <concepts>
#include <cstdlib>
#include <string>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {

/// What a launcher says about this process.
struct launch {
  const char* launcher = "none";  // belay-run, torchrun, openmpi, pmi, slurm; none: started by hand
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the ranks of this host
  int local_size = 0;  // ranks of this host; 0: the launcher does not say

  /// Whether the launcher says that ranks run on other hosts too.
  [[nodiscard]] bool several_hosts() const noexcept { return local_size > 0 && local_size < size; }

  /// "torchrun: rank 1 of 4"
  [[nodiscard]] std::string text() const {
    return std::string(launcher) + ": rank " + std::to_string(rank) + " of " + std::to_string(size);
  }
};

/// Looks a variable up as std::getenv does: null where it is not set.
template <class Lookup>
concept environment = requires(const Lookup& variable, const char* name) {
  { variable(name) } -> std::convertible_to<const char*>;
};

/// The variables of one launcher; null where it has none for that number.
struct launcher_variables {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

/// In the order in which they are believed. Two of them that disagree are an error.
inline constexpr launcher_variables known_launchers[] = {
    {"belay-run", "BELAY_RANK", "BELAY_SIZE", "BELAY_RANK", "BELAY_SIZE"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"pmi", "PMI_RANK", "PMI_SIZE", nullptr, nullptr},
};
/// Believed last, and in conflict with nobody: what is launched inside an allocation inherits it.
inline constexpr launcher_variables slurm_variables{"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr};

/// Reads one launcher's set from the environment.
template <environment Lookup>
class launch_reader {
 public:
  explicit launch_reader(const Lookup& variable) noexcept : variable_(&variable) {}

  [[nodiscard]] bool is_set(const char* name) const {
    const char* const text = (*variable_)(name);
    return text != nullptr && *text != '\0';
  }

  /// Throws input_error, naming the variable, for a set that is incomplete or impossible.
  [[nodiscard]] launch read(const launcher_variables& from) const {
    launch out;
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
  [[nodiscard]] int number(const launcher_variables& from, const char* name, long least) const {
    if (!is_set(name)) {
      throw input_error(std::string(name) + " is not set, but other variables of " + from.launcher +
                        " are; BELAY_LAUNCHER=none starts a single rank");
    }
    const char* const text = (*variable_)(name);
    constexpr long most = 1 << 20;
    char* end = nullptr;
    const long read = std::strtol(text, &end, 10);
    if (*end != '\0' || read < least || read > most) {
      throw input_error(std::string(name) + "=" + text + ": expected a whole number from " + std::to_string(least) +
                        " to " + std::to_string(most));
    }
    return static_cast<int>(read);
  }

  const Lookup* variable_;
};

/// Which rank this process is, by the first of belay-run, torchrun, Open MPI, PMI and Slurm that has left its
/// variables; one rank where none has. BELAY_LAUNCHER=name asks that one alone ("none": a single rank). Throws
/// input_error for a set that is incomplete or impossible, for an unknown name, and where torchrun, Open MPI and PMI
/// disagree on rank or size, or where PMIx alone tells a rank and nobody a size. Slurm conflicts with none: a launcher
/// inside an allocation inherits its variables.
template <environment Lookup>
[[nodiscard]] launch find_launch(const Lookup& variable) {
  const launch_reader<Lookup> reader(variable);
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
  launch found;
  bool any = false;
  for (const launcher_variables& from : known_launchers) {
    if (!reader.is_set(from.rank) && !reader.is_set(from.size)) continue;
    const launch here = reader.read(from);
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

/// The same of this process's environment.
[[nodiscard]] inline launch find_launch() {
  return find_launch([](const char* name) { return std::getenv(name); });
}

}  // namespace belay::inline BELAY_ABI
