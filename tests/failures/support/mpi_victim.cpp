// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// mpi_victim MODE TIMEOUT STALL: a job whose rank 1 fails as MODE says in the middle of its work; the others print the
// error that they get. With "queued-MODE" the work is in flight: kernels and started operations on streams.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "belay/backend/mpi.hpp"
#include "belay/device/host_stream.hpp"

namespace {

// False: the rank is to return early.
bool fail(const std::string& mode, belay::mpi::rank& rank) {
  if (mode == "throw") throw std::domain_error("the culprit's own words");
  if (mode == "return") return false;
  if (mode == "kill") ::kill(::getpid(), SIGKILL);
  if (mode == "segv") ::kill(::getpid(), SIGSEGV);
  if (mode == "abort") std::abort();
  if (mode == "exit") std::_Exit(5);
  if (mode == "stop") ::kill(::getpid(), SIGSTOP);
  if (mode == "elsewhere") rank.group(std::vector<int>{0, 1}).barrier(belay::where{"elsewhere.cpp", "", 7});
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::string queued = "queued-";
  const bool in_flight = std::string(argv[1]).rfind(queued, 0) == 0;
  const std::string mode = in_flight ? argv[1] + queued.size() : argv[1];
  using seconds = std::chrono::duration<double>;
  belay::mpi::world world({.timeout = seconds(std::atof(argv[2])), .stall = seconds(std::atof(argv[3]))});
  try {
    world.run([&](belay::mpi::rank& rank) {
      const auto values = std::make_shared<std::vector<float>>(100'000, 1.0F);
      std::vector<float>& x = *values;
      belay::host_stream compute({in_flight ? belay::stream_policy::queued : belay::stream_policy::immediate},
                                 rank.number());
      for (int step = 0; step < 10; ++step) {
        if (in_flight) {
          float* const first = x.data();
          compute.run([first] { *first = 1; });
          auto largest = rank.world().start_all_reduce(
              std::span(x), belay::maximum, belay::start_order(belay::after(compute.record())).keeping(values));
          std::move(largest).then(compute);
          compute.run([first] { *first += 1; });
          if (step == 5 && rank.number() == 1 && !fail(mode, rank)) return;
          if (step == 9) compute.synchronize();
          continue;
        }
        rank.world().all_reduce(std::span(x), belay::maximum);
        // Every rank has the result of #5 before rank 1 fails.
        if (step == 5) MPI_Barrier(MPI_COMM_WORLD);
        if (step == 5 && rank.number() == 1 && !fail(mode, rank)) return;
      }
    });
  } catch (const belay::comm_error& told) {
    std::string culprits;
    for (int rank : told.about().culprits) culprits += " " + std::to_string(rank);
    std::printf("rank %d is told: %s by%s: %s\n", world.number(), name(told.fault()), culprits.c_str(), told.what());
    return 3;
  } catch (const std::exception& own) {
    std::printf("rank %d throws: %s\n", world.number(), own.what());
    return 4;
  }
  std::printf("rank %d is done\n", world.number());
}
