// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which rank of how many this process is. Each launcher says it in environment variables of its own. Several sets can
// be present at once (mpirun inside a Slurm allocation); two that disagree are an error.
//
//   const belay::launcher_environment mine = belay::find_launcher();
//   std::printf("%s\n", mine.text().c_str());  // torchrun: rank 1 of 4
#pragma once

#include <string>

#include "belay/core/config.hpp"
#include "belay/core/function_ref.hpp"

namespace belay::inline BELAY_ABI {

/// The place of this process among the ranks, as a launcher says it.
struct launcher_environment {
  const char* launcher = "none";  // belay-run, torchrun, openmpi, pmi, slurm; none: started by hand
  /// This process's rank and the number of ranks.
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the ranks of this host
  int local_size = 0;  // ranks of this host; 0: the launcher does not say

  /// Whether the launcher says that ranks run on other hosts too.
  [[nodiscard]] bool several_hosts() const noexcept { return local_size > 0 && local_size < size; }

  /// "torchrun: rank 1 of 4"
  [[nodiscard]] std::string text() const;
};

/// The variables of one launcher; null where it has none for that number.
struct launcher_variables {
  /// A launcher's name and its variables; null where it has none for that.
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

/// In order of precedence. Two of them that disagree are an error.
inline constexpr launcher_variables known_launchers[] = {
    {"belay-run", "BELAY_RANK", "BELAY_SIZE", "BELAY_RANK", "BELAY_SIZE"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"pmi", "PMI_RANK", "PMI_SIZE", nullptr, nullptr},
};
/// Comes last, and conflicts with none: a launcher inside an allocation inherits it.
inline constexpr launcher_variables slurm_variables{"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr};

/// Looks a variable up as std::getenv does: null where it is not set.
using environment = function_ref<const char*(const char* name)>;

/// Which rank this process is, by the first of belay-run, torchrun, Open MPI, PMI and Slurm that has left its
/// variables; one rank where none has. BELAY_LAUNCHER=name asks that one alone ("none": a single rank). Throws
/// input_error for a set that is incomplete or impossible, for an unknown name, and where torchrun, Open MPI and PMI
/// disagree on rank or size, or where only PMIx names a rank and no variable a size. Slurm conflicts with none: a
/// launcher inside an allocation inherits its variables.
[[nodiscard]] BELAY_DECL launcher_environment find_launcher(environment variable);

/// Which rank this process is, by the variables of its own environment; one rank where no launcher has left any. Throws
/// input_error where they are incomplete or impossible, disagree, or name an unknown launcher.
[[nodiscard]] BELAY_DECL launcher_environment find_launcher();

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/launcher.ipp"  // IWYU pragma: export
#endif
