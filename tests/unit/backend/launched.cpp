// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/backend/host/launched.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/backend/host/bootstrap/bootstrap_socket.hpp"
#include "belay/comm.hpp"

using belay::host::launched_world;
using namespace std::chrono_literals;

namespace {

// Starts this many processes as torchrun would, with a job of their own; their exit codes, or 128 and the signal.
template <class Program>
std::vector<int> launch(int ranks, const std::string& job, Program program) {
  std::vector<pid_t> children;
  std::fflush(nullptr);
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::setenv("RANK", std::to_string(rank).c_str(), 1);
      ::setenv("WORLD_SIZE", std::to_string(ranks).c_str(), 1);
      ::setenv("TORCHELASTIC_RUN_ID", job.c_str(), 1);
      int code = 99;
      try {
        code = program(rank);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      }
      std::fflush(nullptr);
      ::_exit(code);
    }
    children.push_back(child);
  }
  std::vector<int> codes;
  for (pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
  return codes;
}

std::size_t left_behind() {
  std::error_code none;
  const std::filesystem::directory_iterator all(belay::host::bootstrap_file::folder_path(), none);
  return none ? 0 : static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// Runs a rank that calls barriers until one fails: 0 where peer `culprit` is named.
int expects_failure_of(belay::host::rank& rank, int culprit) {
  try {
    while (true) rank.world().barrier();
  } catch (const belay::comm_error& error) {
    return error.fault() == belay::comm_fault::peer_failed && error.about().culprits == std::vector<int>{culprit} ? 0
                                                                                                                  : 2;
  }
}

}  // namespace

TEST_CASE("ranks that a launcher started find each other, twice in a row, and leave nothing") {
  const std::size_t before = left_behind();
  const auto codes = launch(3, "together", [](int number) {
    const launched_world world({.timeout = 60s});
    int total = 0;
    for (int round = 0; round < 2; ++round) {
      total += world.run([&](auto& rank) {
        int value = rank.number() == number ? number + 1 : 100;
        rank.world().all_reduce(std::span(&value, 1), belay::sum);
        return value;
      });
    }
    return total;
  });
  CHECK(codes == std::vector<int>{12, 12, 12});
  CHECK(left_behind() == before);
}

TEST_CASE("a launched run is not ended by a forked child, and what outlives it says so when it is used") {
  const auto codes = launch(3, "child", [](int number) {
    std::optional<belay::host::group> kept;
    belay::pending started;
    const launched_world world({.timeout = 60s});
    int child_code = -1;
    world.run([&](belay::host::rank& rank) {
      kept.emplace(rank.world());
      started = rank.world().start_barrier();
      std::fflush(nullptr);
      const pid_t child = ::fork();
      if (child == 0) {  // it takes its copy of the run with it, and nothing else
        static_cast<void>(std::freopen("/dev/null", "w", stderr));
        if (number == 1) throw std::runtime_error("of the child alone");
        return;
      }
      int status = 0;
      ::waitpid(child, &status, 0);
      child_code = WEXITSTATUS(status);
      rank.world().barrier();
    });
    const auto over = [](auto use) {
      try {
        use();
      } catch (const belay::usage_error& error) {
        return std::string(error.what()).find("is over") != std::string::npos;
      }
      return false;
    };
    if (child_code != 1) return 2;
    if (!over([&] { std::move(started).wait(); })) return 3;
    if (!over([&] { kept->start_barrier().wait(); })) return 4;
    if (belay::checked(belay::check_level::local) && !over([&] { kept->barrier(); })) return 5;
    return 0;
  });
  CHECK(codes == std::vector<int>{0, 0, 0});
}

TEST_CASE("a launched rank that is killed is named by the others, the first one too") {
  for (int culprit : {0, 2}) {
    CAPTURE(culprit);
    const auto codes = launch(3, "killed" + std::to_string(culprit), [&](int) {
      const launched_world world({.timeout = 60s});
      return world.run([&](auto& rank) {
        rank.world().barrier();
        if (rank.number() == culprit) ::raise(SIGKILL);
        return expects_failure_of(rank, culprit);
      });
    });
    for (int q = 0; q < 3; ++q) {
      CHECK(codes[static_cast<std::size_t>(q)] == (q == culprit ? 128 + SIGKILL : 0));
    }
  }
}

TEST_CASE("a launched rank that is stopped where nobody waits for it is named by the first, which waits no longer") {
  const auto codes = launch(3, "stopped", [&](int) {
    std::vector<int> pids(3);
    try {
      launched_world({.timeout = 600s, .stall_limit = 200ms}).run([&](auto& rank) {
        const int pid = ::getpid();
        rank.world().all_gather(std::span<const int>(&pid, 1), std::span(pids));
        if (rank.number() == 1) ::raise(SIGSTOP);
      });
    } catch (const belay::comm_error& error) {
      ::kill(pids[1], SIGKILL);
      return error.about().culprits == std::vector<int>{1} &&
                     error.about().message.find("has been stopped for 0.2 s") != std::string::npos
                 ? 7
                 : 8;
    }
    return 0;
  });
  CHECK(codes == std::vector<int>{7, 128 + SIGKILL, 0});
}

TEST_CASE("a rank without a launcher is a world of one; one whose first rank is missing says so") {
  ::unsetenv("RANK");
  ::unsetenv("WORLD_SIZE");
  ::setenv("BELAY_LAUNCHER", "none", 1);
  CHECK(belay::host::world::from_env().run([](auto& rank) { return rank.size(); }) == 1);
  ::unsetenv("BELAY_LAUNCHER");
  const auto codes = launch(2, "lonely", [](int number) {
    if (number == 0) return 0;
    try {
      launched_world({.timeout = 100ms}).run([](auto&) {});
    } catch (const belay::comm_error& error) {
      return error.fault() == belay::comm_fault::timeout &&
                     std::string(error.what()).find("rank 0 of torchrun: rank 1 of 2 wrote no file") !=
                         std::string::npos
                 ? 7
                 : 1;
    }
    return 2;
  });
  CHECK(codes == std::vector<int>{0, 7});
}

TEST_CASE("ranks on several hosts are sent to mpi") {
  ::setenv("RANK", "1", 1);
  ::setenv("WORLD_SIZE", "4", 1);
  ::setenv("LOCAL_RANK", "1", 1);
  ::setenv("LOCAL_WORLD_SIZE", "2", 1);
  CHECK_THROWS_WITH_AS(launched_world{}, doctest::Contains("use mpi"), belay::input_error);
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) ::unsetenv(name);
}
