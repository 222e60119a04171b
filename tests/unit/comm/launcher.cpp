// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/comm/launcher.hpp"

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "belay/core/error.hpp"

namespace {

using variables = std::map<std::string, std::string>;

belay::launcher_environment launcher_in(const variables& set) {
  return belay::find_launcher([&](const char* name) -> const char* {
    const auto found = set.find(name);
    return found == set.end() ? nullptr : found->second.c_str();
  });
}

variables operator+(variables a, const variables& b) {
  a.insert(b.begin(), b.end());
  return a;
}

const variables belay_run{{"BELAY_RANK", "2"}, {"BELAY_SIZE", "3"}};
const variables torchrun{
    {"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}, {"MASTER_ADDR", "host"}};
const variables openmpi{{"OMPI_COMM_WORLD_RANK", "1"},
                        {"OMPI_COMM_WORLD_SIZE", "2"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                        {"PMIX_RANK", "1"}};
const variables pmi{{"PMI_RANK", "0"}, {"PMI_SIZE", "4"}};
const variables slurm{{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "6"}, {"SLURM_LOCALID", "0"}, {"SLURM_STEP_ID", "0"}};

}  // namespace

TEST_CASE("each launcher's variables are read; without any there is one rank") {
  const auto check = [](const variables& set, const char* launcher, int rank, int size, int local_rank,
                        int local_size) {
    const belay::launcher_environment found = launcher_in(set);
    CAPTURE(launcher);
    CHECK(std::string(found.launcher) == launcher);
    CHECK(found.rank == rank);
    CHECK(found.size == size);
    CHECK(found.local_rank == local_rank);
    CHECK(found.local_size == local_size);
  };
  check({}, "none", 0, 1, 0, 0);
  check(belay_run, "belay-run", 2, 3, 2, 3);
  check(torchrun, "torchrun", 5, 8, 1, 4);
  check(openmpi, "openmpi", 1, 2, 1, 2);
  check(pmi, "pmi", 0, 4, 0, 0);
  check(slurm, "slurm", 3, 6, 0, 0);
}

TEST_CASE("only ranks that the launcher places elsewhere make several hosts") {
  CHECK(launcher_in(torchrun).several_hosts());
  CHECK(!launcher_in(openmpi).several_hosts());
  CHECK(!launcher_in(pmi).several_hosts());
  CHECK(!launcher_in({}).several_hosts());
}

TEST_CASE("the order is belay-run, torchrun, Open MPI, PMI, Slurm") {
  CHECK(launcher_in(belay_run + torchrun + openmpi + slurm).text() == "belay-run: rank 2 of 3");
  CHECK(launcher_in(openmpi + slurm).text() == "openmpi: rank 1 of 2");  // mpirun within an allocation
  CHECK(launcher_in(openmpi + variables{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}).text() == "openmpi: rank 1 of 2");
  CHECK(launcher_in(variables{{"RANK", "1"}, {"WORLD_SIZE", "2"}} + openmpi).text() == "torchrun: rank 1 of 2");
  CHECK(launcher_in(variables{{"SLURM_NTASKS", "4"}}).text() == "none: rank 0 of 1");  // a shell of an allocation
}

TEST_CASE("launchers that disagree are listed, unless one is chosen") {
  CHECK_THROWS_WITH_AS(static_cast<void>(launcher_in(torchrun + openmpi)),
                       doctest::Contains("torchrun: rank 5 of 8, openmpi: rank 1 of 2"), belay::input_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(launcher_in(openmpi + pmi)),
                       doctest::Contains("openmpi: rank 1 of 2, pmi: rank 0 of 4"), belay::input_error);
  const auto choose = [](const char* name) { return variables{{"BELAY_LAUNCHER", name}}; };
  CHECK(launcher_in(torchrun + openmpi + choose("openmpi")).text() == "openmpi: rank 1 of 2");
  CHECK(launcher_in(torchrun + slurm + choose("slurm")).text() == "slurm: rank 3 of 6");
  CHECK(launcher_in(torchrun + openmpi + choose("none")).text() == "none: rank 0 of 1");
  CHECK_THROWS_WITH_AS(static_cast<void>(launcher_in(choose("mpich"))),
                       doctest::Contains("BELAY_LAUNCHER=mpich: there are none, slurm, belay-run, torchrun"),
                       belay::input_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(launcher_in(choose("torchrun"))), doctest::Contains("RANK is not set"),
                       belay::input_error);
}

TEST_CASE("an incomplete or impossible set names its variable") {
  const auto refuses = [](const variables& set, const char* text) {
    CHECK_THROWS_WITH_AS(static_cast<void>(launcher_in(set)), doctest::Contains(text), belay::input_error);
  };
  refuses({{"RANK", "1"}}, "WORLD_SIZE is not set, but other variables of torchrun are");
  refuses({{"WORLD_SIZE", "2"}}, "RANK is not set");
  refuses({{"OMPI_COMM_WORLD_RANK", "0"}}, "OMPI_COMM_WORLD_SIZE is not set");
  refuses({{"SLURM_PROCID", "0"}}, "SLURM_NTASKS is not set");
  refuses({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK=2 is no rank of WORLD_SIZE=2");
  refuses({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, "RANK=-1: expected a whole number from 0");
  refuses({{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "WORLD_SIZE=0: expected a whole number from 1");
  refuses({{"RANK", "0x"}, {"WORLD_SIZE", "2"}}, "RANK=0x: expected a whole number");
  refuses({{"PMI_RANK", "0"}, {"PMI_SIZE", "99999999999999999999"}}, "PMI_SIZE=99999999999999999999");
  refuses(variables{{"LOCAL_WORLD_SIZE", "9"}} + torchrun, "LOCAL_RANK=1 of LOCAL_WORLD_SIZE=9");
  refuses(variables{{"LOCAL_RANK", "4"}} + torchrun, "LOCAL_RANK=4 of LOCAL_WORLD_SIZE=4");
}

TEST_CASE("PMIx alone tells a rank and nobody a size; beside a launcher that does it is no matter") {
  CHECK_THROWS_WITH_AS(launcher_in({{"PMIX_RANK", "1"}}), doctest::Contains("PMIX_RANK is set, but no variable"),
                       belay::input_error);
  CHECK(launcher_in(slurm + variables{{"PMIX_RANK", "3"}}).size == 6);
  CHECK(launcher_in({{"PMIX_RANK", "1"}, {"BELAY_LAUNCHER", "none"}}).size == 1);
}
