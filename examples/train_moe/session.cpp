// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/session.hpp"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "belay/backend/host/processes.hpp"
#include "belay/comm/launcher.hpp"
#include "belay/train/plan.hpp"
#include "train_moe/host_trainer.hpp"
#include "train_moe/mpi_session.hpp"

namespace train_moe {

namespace {

using belay::host::pinning;

// A rank with a core of its own is pinned to it and keeps its cache. Ranks that share cores are not pinned.
belay::host::world_options host_options(long long ranks) {
  const bool spare = ranks <= static_cast<long long>(std::thread::hardware_concurrency());
  return {.pin = spare ? pinning::one_core_each : pinning::none};
}

// OpenBLAS starts threads when it is loaded, and a process with threads must not fork. With this variable it starts
// none.
void start_without_threads(char** argv) {
  if (std::getenv("OPENBLAS_NUM_THREADS") != nullptr) return;
  ::setenv("OPENBLAS_NUM_THREADS", "1", 1);
  ::execv("/proc/self/exe", argv);  // where that fails, the fork reports the threads
}

// Ctrl-C ends the ranks. The process that started them ignores it, and reports their end.
class outlives_interrupts {
 public:
  outlives_interrupts() noexcept : before_(std::signal(SIGINT, [](int) {})) {}
  outlives_interrupts(const outlives_interrupts&) = delete;
  outlives_interrupts& operator=(const outlives_interrupts&) = delete;
  ~outlives_interrupts() { std::signal(SIGINT, before_); }

 private:
  void (*before_)(int);
};

void expect_ranks(const belay::launcher_environment& found, const options& run, const char* backend) {
  if (found.size == static_cast<int>(run.mesh.ranks())) return;
  throw belay::input_error("--mesh " + mesh_text(run.mesh) + " is " + std::to_string(run.mesh.ranks()) +
                           " ranks, and " + found.text() + ": start as many, as examples/run --backend " + backend +
                           " does");
}

}  // namespace

bool tells(const command_line& line, const std::exception& error) {
  if (line.backend == backend_kind::threads) return true;
  const belay::launcher_environment found = belay::find_launcher();
  if (found.size == 1) return true;
  if (const auto* what = dynamic_cast<const belay::comm_error*>(&error)) {
    if (std::string(found.launcher) == "belay-run") return false;  // it has said so itself
    const std::vector<int>& culprits = what->about().culprits;
    int first = 0;
    while (std::find(culprits.begin(), culprits.end(), first) != culprits.end()) ++first;
    return found.rank == first;
  }
  const bool everybodys = dynamic_cast<const belay::input_error*>(&error) != nullptr ||
                          dynamic_cast<const belay::file_error*>(&error) != nullptr ||
                          dynamic_cast<const belay::plan_refused*>(&error) != nullptr;
  return found.rank == 0 || !everybodys;
}

int run_session(const command_line& line, char** argv) {
  model::one_thread_per_product();
  const options& run = line.run;
  const int ranks = static_cast<int>(run.mesh.ranks());
  const voice says =
      line.backend == backend_kind::threads || belay::find_launcher().rank == 0 ? voice::speaks : voice::silent;
  switch (line.backend) {
    case backend_kind::threads: {
      prepared_run prepared(line, says);
      run_on(belay::host::world{ranks, host_options(ranks)}, prepared);
      return 0;
    }
    case backend_kind::processes: {
      const belay::launcher_environment found = belay::find_launcher();
      const bool alone = found.size == 1;
      if (!alone) expect_ranks(found, run, "processes");
      if (alone) start_without_threads(argv);
      prepared_run prepared(line, says);
      if (!alone) {
        run_on(belay::host::world::from_env(host_options(ranks)), prepared);
        return 0;
      }
      const outlives_interrupts here;
      run_on(belay::host::processes{ranks, host_options(ranks)}, prepared, [] { std::signal(SIGINT, SIG_DFL); });
      return 0;
    }
    case backend_kind::mpi: {
      const belay::launcher_environment found = belay::find_launcher();
      expect_ranks(found, run, "mpi");
      prepared_run prepared(line, says);
      run_mpi_session(prepared);
      return 0;
    }
  }
  return 1;
}

}  // namespace train_moe
