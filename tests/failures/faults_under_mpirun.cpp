// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Jobs whose rank 1 fails. No rank hangs. Where mpirun lets the others go on they all name the failed rank; where it
// ends the job, its report names the rank.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>

namespace {

struct job {
  int exit_code = -1;
  double seconds = 0;
  std::string output;

  [[nodiscard]] bool says(const std::string& what) const { return output.find(what) != std::string::npos; }
  [[nodiscard]] int count(const std::string& what) const {
    int found = 0;
    for (std::size_t at = 0; (at = output.find(what, at)) != std::string::npos; ++at) ++found;
    return found;
  }
};

job run(const std::string& mode, const std::string& mpirun_flags, const std::string& limits) {
  const std::string command = "timeout -k 5 60 " BELAY_MPIRUN " " + mpirun_flags + " -np 3 " BELAY_MPI_VICTIM " " +
                              mode + " " + limits + " 2>&1";
  job out;
  const auto start = std::chrono::steady_clock::now();
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) out.output += static_cast<char>(c);
  const int status = ::pclose(pipe);
  out.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return out;
}

}  // namespace

TEST_CASE("nothing fails: every rank is done") {
  const job all = run("nothing", "", "60 30");
  CAPTURE(all.output);
  CHECK(all.exit_code == 0);
  for (int rank = 0; rank < 3; ++rank) CHECK(all.says("rank " + std::to_string(rank) + " is done"));
}

TEST_CASE("a rank that throws or returns early is named by the others at once") {
  for (const std::string mode : {"throw", "return"}) {
    const job failed = run(mode, "--enable-recovery", "60 30");  // with it mpirun itself returns 0
    CAPTURE(failed.output);
    CHECK(failed.seconds < 20);
    CHECK(failed.says("rank 0 is told: peer_failed by 1:"));
    CHECK(failed.says("rank 2 is told: peer_failed by 1:"));
    if (mode == "throw") CHECK(failed.says("rank 1 throws: the culprit's own words"));
    CHECK_FALSE(failed.says("aborting the job"));
  }
}

TEST_CASE("where mpirun lets them go on, survivors of a rank that dies name it well before the deadline") {
  for (const std::string mode : {"kill", "abort", "exit"}) {
    const job failed = run(mode, "--enable-recovery", "40 30");
    CAPTURE(mode);
    CAPTURE(failed.output);
    CHECK(failed.seconds < 20);
    CHECK(failed.says("rank 0 is told: peer_failed by 1:"));
    CHECK(failed.says("rank 2 is told: peer_failed by 1:"));
    CHECK(failed.says("all_reduce"));
  }
}

TEST_CASE("and where work is in flight on streams") {
  const job all = run("queued-nothing", "", "60 30");
  CAPTURE(all.output);
  CHECK(all.exit_code == 0);
  for (const std::string mode : {"throw", "return", "kill", "segv", "abort", "exit"}) {
    const job failed = run("queued-" + mode, "--enable-recovery", "40 30");
    CAPTURE(mode);
    CAPTURE(failed.output);
    CHECK(failed.seconds < 20);
    CHECK(failed.says("rank 0 is told: peer_failed by 1:"));
    CHECK(failed.says("rank 2 is told: peer_failed by 1:"));
    CHECK(failed.says("mpi_victim.cpp:"));  // the line that handed the operation to the stream
    CHECK(failed.says("peer_failed in all_reduce #"));
  }
  const job stopped = run("queued-stop", "--enable-recovery", "1.5 0.2");
  CAPTURE(stopped.output);
  CHECK(stopped.seconds < 30);
  CHECK(stopped.says("peer_failed in all_reduce"));
  CHECK(stopped.says("stopped"));
}

TEST_CASE("and where tokens are on their way to experts and back") {
  const job all = run("experts-nothing", "", "60 30");
  CAPTURE(all.output);
  CHECK(all.exit_code == 0);
  for (int rank = 0; rank < 3; ++rank) CHECK(all.says("rank " + std::to_string(rank) + " is done"));
  for (const std::string mode : {"throw", "return", "kill", "abort", "exit"}) {
    const job failed = run("experts-" + mode, "--enable-recovery", "40 30");
    CAPTURE(mode);
    CAPTURE(failed.output);
    CHECK(failed.seconds < 20);
    CHECK(failed.says("rank 0 is told: peer_failed by 1:"));
    CHECK(failed.says("rank 2 is told: peer_failed by 1:"));
    CHECK(failed.says("mpi_victim.cpp:"));  // the line of the dispatch, or of another move
    CHECK(failed.says("peer_failed in exchange"));
  }
  const job stopped = run("experts-stop", "--enable-recovery", "1.5 0.2");
  CAPTURE(stopped.output);
  CHECK(stopped.seconds < 30);
  CHECK(stopped.says("peer_failed in "));
  CHECK(stopped.says("stopped"));
}

TEST_CASE("and where a store's parameters are gathered, its gradients reduced or its shards updated") {
  const job all = run("store-nowhere", "", "60 30");
  CAPTURE(all.output);
  CHECK(all.exit_code == 0);
  for (int rank = 0; rank < 3; ++rank) CHECK(all.says("rank " + std::to_string(rank) + " is done"));
  for (const std::string place : {"gather", "reduction", "update"}) {
    const job failed = run("store-" + place + "-kill", "--enable-recovery", "40 30");
    CAPTURE(place);
    CAPTURE(failed.output);
    CHECK(failed.seconds < 20);
    CHECK(failed.says("rank 0 is told: peer_failed by 1:"));
    CHECK(failed.says("rank 2 is told: peer_failed by 1:"));
  }
}

TEST_CASE("a rank that gathers otherwise than the plan and its peers is named by all") {
  const job other = run("store-other_call", "--enable-recovery", "40 30");
  CAPTURE(other.output);
  CHECK(other.seconds < 20);
  for (int rank = 0; rank < 3; ++rank) CHECK(other.says("rank " + std::to_string(rank) + " is told: peer_failed"));
  CHECK(other.count("ranks gather different layers, and the plan says neither: rank 0 of the group says layer 1") == 3);
  const job one_more = run("store-one_more_call", "--enable-recovery", "40 30");
  CAPTURE(one_more.output);
  CHECK(one_more.seconds < 20);
  for (int rank = 0; rank < 3; ++rank) CHECK(one_more.says("rank " + std::to_string(rank) + " is told: mismatch"));
}

TEST_CASE("under plain mpirun a rank that dies ends the job with a report that names it") {
  for (const std::string mode : {"kill", "segv", "queued-segv"}) {
    const job failed = run(mode, "", "40 30");
    CAPTURE(mode);
    CAPTURE(failed.output);
    CHECK(failed.exit_code != 0);
    CHECK(failed.seconds < 20);
    CHECK((failed.says("process rank 1 with PID") || failed.says("peer_failed by 1:")));
  }
}

TEST_CASE("a stopped rank is named at the stall limit or at the deadline, and the job ends") {
  for (const std::string spin_policy : {"1 30", "1.5 0.2"}) {
    const job failed = run("stop", "--enable-recovery", spin_policy);
    CAPTURE(spin_policy);
    CAPTURE(failed.output);
    CHECK(failed.seconds < 30);
    const std::string fault = spin_policy == "1.5 0.2" ? "peer_failed" : "timeout";
    CHECK(failed.says(fault + " in all_reduce #6, rank 1"));
    CHECK(failed.says("stopped"));
    CHECK(failed.says("aborting the job"));
  }
}
