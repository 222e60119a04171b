// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// mpi_victim MODE TIMEOUT STALL: a job whose rank 1 fails as MODE says in the middle of its work; the others print the
// error that they get.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "belay/backend/mpi.hpp"

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
  const std::string mode = argv[1];
  using seconds = std::chrono::duration<double>;
  belay::mpi::world world({.timeout = seconds(std::atof(argv[2])), .stall = seconds(std::atof(argv[3]))});
  try {
    world.run([&](belay::mpi::rank& rank) {
      std::vector<float> x(100'000, 1.0F);
      for (int step = 0; step < 10; ++step) {
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
