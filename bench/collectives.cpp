// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Times of the collectives: the table of nccl-tests, beside the limits of the machine, MPI and a hand-written baseline,
// all in one run. See docs/howto/measure_collectives.md.
#include <cstddef>
#include <cstdio>
#include <exception>
#include <string>

#include "belay/comm/launcher.hpp"
#include "collectives/algorithm.hpp"
#include "collectives/body.hpp"
#include "collectives/launch.hpp"
#include "collectives/options.hpp"
#include "collectives/rules_text.hpp"
#include "collectives/under_mpi.hpp"
#include "support/mpirun.hpp"

namespace {

int run(const bench::options& what, char** argv) {
  const bool needs_mpirun = what.as == "mpi" || what.has_peer("mpi");
  if (needs_mpirun && !bench::mpi_available) {
    std::fprintf(stderr,
                 "built without MPI: apt-get install libopenmpi-dev openmpi-bin (Debian's names), then build anew\n");
    return 2;
  }
  if (bench::under_mpirun() && !needs_mpirun) {  // each process would start all ranks, on one core
    std::fprintf(
        stderr,
        "mpirun started this: leave that to the program (--as mpi, --beside mpi), or start it without mpirun\n");
    return 2;
  }
  if (bench::under_mpirun() && bench::mpirun_processes() != what.ranks) {
    std::fprintf(stderr, "mpirun started %d processes for --ranks %d\n", bench::mpirun_processes(), what.ranks);
    return 2;
  }
  if (!bench::under_mpirun()) {  // else the process that started mpirun printed it
    for (const std::string& note : what.notes) std::fprintf(stderr, "# %s\n", note.c_str());
  }
  if (needs_mpirun && !bench::under_mpirun()) {
    bench::become_mpirun(what.ranks, what.oversubscribed() ? bench::cores::fewer_than_ranks : bench::cores::one_each,
                         argv);
    return 2;
  }
  const bench::shared_outcome shared;
  const auto body = [&](auto& self) {
    const std::size_t wrong = bench::measure_all(self.world(), what);
    if (self.number() == 0 || needs_mpirun) shared.get().wrong = wrong;
  };
#if defined(BELAY_BENCH_MPI)
  if (what.as == "mpi") {
    const std::size_t wrong = bench::measure_under_mpi(what);
    if (wrong > 0) std::fprintf(stderr, "%zu elements are wrong\n", wrong);
    return wrong > 0 ? 1 : 0;
  }
#endif
  belay::host::world_options how;
  how.algorithm = bench::forced_algorithm(what);
  if (!what.oversubscribed()) how.pin = belay::host::pinning::one_core_each;
  if (what.explain && belay::find_launcher().rank == 0)
    std::fputs(bench::rules_text(what.ranks, how.algorithm, belay::host::calibrate_copies()).c_str(), stderr);
  if (needs_mpirun) {
    const bench::mpi_session session(true);
    belay::host::world::from_env(how).run(body);
  } else if (what.as == "processes") {
    belay::host::processes{what.ranks, how}.run(body);
  } else {
    belay::host::world{what.ranks, how}.run(body);
  }
  if (shared.get().wrong > 0) std::fprintf(stderr, "%zu elements are wrong\n", shared.get().wrong);
  return shared.get().wrong > 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  int code = 0;
  const auto what = bench::parse_options(argc, argv, code);
  if (!what) return code;
  try {
    return run(*what, argv);
  } catch (const belay::input_error& problem) {  // a flag makes no sense
    std::fprintf(stderr, "%s\n", problem.what());
    return 2;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "%s\n", problem.what());
    return 1;
  }
}
