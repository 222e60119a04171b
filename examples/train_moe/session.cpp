// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/session.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "belay/backend/host/processes.hpp"
#include "belay/comm/launcher.hpp"
#include "model/products.hpp"
#include "train_moe/cuda_trainer.hpp"
#include "train_moe/cudnn_trainer.hpp"
#include "train_moe/host_ranks.hpp"
#include "train_moe/nccl_trainer.hpp"
#include "train_moe/run_report.hpp"
#include "train_moe/schedule_probe.hpp"

namespace train_moe {

namespace {

using belay::input_error;
using belay::host::pinning;

// A rank with a core of its own is pinned to it and keeps its cache. Ranks that share cores are not pinned, nor are
// those with a device, which NCCL's threads would be pinned with.
belay::host::world_options host_options(const command_line& line) {
  const bool spare = line.run.mesh.ranks() <= static_cast<long long>(std::thread::hardware_concurrency()) &&
                     line.device == device_kind::host;
  return {.pin = spare ? pinning::one_core_each : pinning::none};
}

// OpenBLAS starts threads when it is loaded, and a process with threads must not fork. With this variable it starts
// none.
void start_without_threads(char** argv) {
  if (std::getenv("OPENBLAS_NUM_THREADS") != nullptr) return;
  ::setenv("OPENBLAS_NUM_THREADS", "1", 1);
  ::execv("/proc/self/exe", argv);  // where that fails, the fork reports the threads
}

// Ctrl-C ends the ranks: the terminal sends it to all of them, whoever else does to the process that started them,
// which passes it on and reports their end. It has one thread, whose children they are.
void interrupt_children(int) {
  const int error = errno;
  char text[4096];
  const int children = ::open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC);
  const ssize_t got = children < 0 ? 0 : ::read(children, text, sizeof text);
  for (pid_t child = 0; const char each : std::span(text, got > 0 ? static_cast<std::size_t>(got) : 0))
    if (each >= '0' && each <= '9')
      child = 10 * child + (each - '0');
    else if (child != 0)  // which would be the whole process group
      ::kill(std::exchange(child, 0), SIGINT);
  if (children >= 0) ::close(children);
  errno = error;
}
class outlives_interrupts {
 public:
  outlives_interrupts() noexcept : before_(std::signal(SIGINT, interrupt_children)) {}
  outlives_interrupts(const outlives_interrupts&) = delete;
  outlives_interrupts& operator=(const outlives_interrupts&) = delete;
  ~outlives_interrupts() { std::signal(SIGINT, before_); }

 private:
  void (*before_)(int);
};

// On the GPUs of the ranks' own where they have some, else on the host.
template <class World>
void run_ranks(const World& world, prepared_run& prepared, void (*begin)() = [] {}) {
  if (prepared.line.placed)
    run_over_nccl(world, prepared, begin);
  else
    run_on(world, prepared, begin);
}

// Which GPUs the ranks have. A process that has asked a device for something cannot be copied, so ranks that are forked
// find out themselves whether there are enough.
device_placement found_devices(const command_line& line) {
  const belay::launcher_environment launcher = belay::find_launcher();
  const nccl_support nccl = built_with_nccl();
  if (line.backend == backend_kind::threads) {
    expect_cuda_device();
    return placed_threads(line.devices, static_cast<int>(line.run.mesh.ranks()), count_cuda_devices(), nccl);
  }
  if (line.backend == backend_kind::mpi || launcher.size > 1)
    return placed_processes(nccl, launcher, count_cuda_devices());
  return placed_processes(nccl);
}

// What is not there all ranks of a machine find alike.
void choose_devices(command_line& line) {
  try {
    line.placed = found_devices(line);
  } catch (const belay::backend_error& problem) {
    if (belay::find_launcher().local_rank > 0) throw first_rank_tells(problem.about());
    throw;
  }
  if (line.attention == command_line::attention_form::cudnn && line.placed->own())
    throw input_error("--attention cudnn: ranks have a GPU each here, and its ranks share one: take --devices shared");
  expect_graphs_fit(line);
}

// The page of a run that has failed gets the reason that standard error gets. The rank that wrote the page has its own,
// which is not the first cause's where ranks fail together, and one that is gone has none.
void explain(prepared_run& prepared, const std::exception& problem) noexcept {
  try {
    if (prepared.report) prepared.report->explain(reason_of(problem));
  } catch (const std::exception&) {
    return;  // the run's problem is said, and the page's file has one of its own
  }
}

// A page of ranks that were forked here: where the rank that writes it is gone, it does not say for ever that they run.
void run_forked(int ranks, prepared_run& prepared) {
  const outlives_interrupts here;
  try {
    run_ranks(belay::host::processes{ranks, host_options(prepared.line)}, prepared,
              [] { std::signal(SIGINT, SIG_DFL); });
  } catch (const std::exception& problem) {
    const auto* const of_rank = dynamic_cast<const belay::comm_error*>(&problem);
    const bool interrupted = of_rank != nullptr && of_rank->about().signal == SIGINT;
    if (prepared.report)
      belay::page_ending::write(prepared.report->page_path().c_str(), interrupted ? "interrupted" : "failed");
    throw;
  }
}

void expect_ranks(const belay::launcher_environment& found, const options& run, const char* backend) {
  if (found.size == static_cast<int>(run.mesh.ranks())) return;
  throw belay::input_error("--mesh " + mesh_text(run.mesh) + " is " + std::to_string(run.mesh.ranks()) +
                           " ranks, and " +
                           (found.size == 1 ? std::string("this process was started alone") : found.text()) +
                           ": start as many, as examples/run --backend " + backend + " does");
}

// Runs what was planned on the ranks that the flags name.
void run_ranks_of(prepared_run& prepared, const belay::launcher_environment& found) {
  const command_line& line = prepared.line;
  const int ranks = static_cast<int>(line.run.mesh.ranks());
  if (line.placed && !line.placed->own()) {
    if (line.attention == command_line::attention_form::cudnn)
      run_cudnn_session(prepared);
    else
      run_cuda_session(prepared);
  } else if (line.backend == backend_kind::threads) {
    run_ranks(belay::host::world{ranks, host_options(line)}, prepared);
  } else if (line.backend == backend_kind::mpi) {
    run_mpi_session(prepared);
  } else if (found.size == 1) {
    run_forked(ranks, prepared);
  } else {
    run_ranks(belay::host::world::from_env(host_options(line)), prepared);
  }
}

// Where no plan of the probe fits the budget, or its times are not known, the counted costs stay.
void choose_by_probe(command_line& line, const belay::launcher_environment& found, prepared_run::placing place) {
  command_line probe = probe_of(line);
  probed_costs costs;
  try {
    prepared_run prepared(probe, voice::silent, rehearsed, place);
    prepared.probed = &costs;
    run_ranks_of(prepared, found);
  } catch (const belay::plan_refused&) {
    return;
  }
  const auto text = costs.text();
  if (!text) return;
  options& run = line.run;
  run.schedule = line.choice.asked;
  run.schedule_text.clear();
  line.choice = choose_schedule(run, costs_of_probe(*text, probe.run.model.layers, run.model.layers),
                                "a probe of each kind of layer");
}

}  // namespace

int run_session(const command_line& given, char** argv) {
  model::one_thread_per_product();
  command_line line = given;
  const options& run = line.run;
  const belay::launcher_environment found = belay::find_launcher();
  const bool threads = line.backend == backend_kind::threads, mpi = line.backend == backend_kind::mpi;
  const bool forks = !threads && !mpi && found.size == 1;
  if (threads && found.size > 1)
    throw input_error("--backend threads: " + found.text() + ", and each would train for itself: say --backend " +
                      "processes under belay-run, --backend mpi under mpirun");
  if (!threads && !forks) expect_ranks(found, run, mpi ? "mpi" : "processes");
  if (line.attention == command_line::attention_form::cudnn) expect_cudnn();
  if (forks) start_without_threads(argv);
  std::optional<belay::stop_request> stop;
  if (!run.checkpoint.folder.empty()) line.run.checkpoint.stop = &stop.emplace();
  const prepared_run::placing place = line.device == device_kind::cuda ? choose_devices : nullptr;
  // A process that a launcher has started is a rank of one world, which the run is.
  if (is_probed(line) && found.size == 1) choose_by_probe(line, found, place);
  prepared_run prepared(line, threads || found.rank == 0 ? voice::speaks : voice::silent, rehearsed, place);
  std::optional<belay::report_interruption> interruption;
  if (prepared.report && !forks) interruption.emplace(prepared.report->page_path());
  try {
    run_ranks_of(prepared, found);
  } catch (const std::exception& problem) {
    if (threads || forks) explain(prepared, problem);
    throw;
  }
  return stop && stop->followed() ? belay::exit_code_of_a_stop : 0;
}

}  // namespace train_moe
