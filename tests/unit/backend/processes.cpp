// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/backend/host/processes.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "belay/backend/host/bootstrap/bootstrap_socket.hpp"
#include "belay/backend/host/bootstrap/private_directory.hpp"
#include "belay/comm.hpp"
#include "belay/core/process.hpp"
#include "unit/backend/forked.hpp"

using belay::host::processes;
using belay::host::rank_outcome;
using namespace std::chrono_literals;

namespace {

// What a run may not leave behind.
struct belongings {
  std::size_t descriptors = count("/proc/self/fd");
  std::size_t sockets = sockets_now();
  [[nodiscard]] static std::size_t count(const char* folder) {
    std::size_t n = 0;
    for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator(folder)) ++n;
    return n;
  }
  [[nodiscard]] static std::size_t sockets_now() {
    std::size_t n = 0;
    const std::string mine = "-" + std::to_string(::getpid()) + "-";
    for (const auto& each : std::filesystem::directory_iterator(belay::host::base_directory())) {
      n += each.path().filename().string().find(mine) != std::string::npos;
    }
    return n;
  }
  [[nodiscard]] bool operator==(const belongings&) const = default;
};

[[nodiscard]] bool no_children() { return ::waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD; }

// Calls collectives until one fails; how.
template <class Rank>
belay::comm_error::details failure_of(Rank& rank) {
  try {
    while (true) rank.world().barrier();
  } catch (const belay::comm_error& error) {
    return error.about();
  }
}

}  // namespace

TEST_CASE("processes give the bodies' results in rank order, run again and leave nothing behind") {
  const belongings before;
  const processes world{3};
  for (int round = 0; round < 2; ++round) {
    const auto names = world.run([](auto& rank) { return "rank " + std::to_string(rank.number()); });
    CHECK(names == std::vector<std::string>{"rank 0", "rank 1", "rank 2"});
    const auto squares = world.run([](auto& rank) { return rank.number() * rank.number(); });
    CHECK(squares == std::vector<int>{0, 1, 4});
  }
  world.run([](auto& rank) { rank.world().barrier(); });
  CHECK(no_children());
  CHECK(belongings() == before);
}

TEST_CASE("a rank's writes are its own, but for symmetric memory") {
  int mine = 0;
  const auto seen = processes{2}.run([&](auto& rank) {
    mine = rank.number() + 1;
    belay::symmetric_heap heap{rank.world(), {.bytes = 4096}};
    const auto slot = heap.lease(64, "shared");
    *slot.local() = static_cast<std::byte>(rank.number() + 7);
    rank.world().barrier();
    const int theirs = static_cast<int>(*slot.at(1 - rank.number()));
    rank.world().barrier();
    return 10 * mine + theirs;
  });
  CHECK(mine == 0);
  CHECK(seen == std::vector<int>{18, 27});
}

TEST_CASE("every end of a process is named by all others and by the parent") {
  struct fault {
    const char* name;
    void (*commit)();
    int signal, exit_code;
  };
  const fault faults[] = {
      {"kill", [] { ::raise(SIGKILL); }, SIGKILL, -1},
      {"segv", [] { ::signal(SIGSEGV, SIG_DFL), ::raise(SIGSEGV); }, SIGSEGV, -1},
      {"abort", [] { ::signal(SIGABRT, SIG_DFL), ::raise(SIGABRT); }, SIGABRT, -1},
      {"exit", [] { ::_exit(3); }, 0, 3},
      {"exit 0", [] { ::_exit(0); }, 0, 0},
  };
  for (const fault& each : faults) {
    for (int ranks : {2, 3}) {
      CAPTURE(each.name);
      CAPTURE(ranks);
      const belongings before;
      const int culprit = ranks - 1;
      const auto body = [&](auto& rank) {
        rank.world().barrier();
        if (rank.number() == culprit) each.commit();
        const auto what = failure_of(rank);
        const auto again = failure_of(rank);
        return what.fault == belay::comm_fault::peer_failed && what.culprits == std::vector<int>{culprit} &&
               what.signal == each.signal && what.exit_code == each.exit_code && !what.there.empty() &&
               what.message.find("after barrier #0") != std::string::npos && again.message == what.message;
      };
      const auto ends = processes{ranks}.outcomes(body);
      for (int q = 0; q < culprit; ++q) {
        const auto& end = ends[static_cast<std::size_t>(q)];
        CHECK(end.how == rank_outcome::outcome_kind::returned);
        CHECK(end.result == std::string(1, '\1'));
      }
      CHECK(ends.back().how ==
            (each.signal > 0 ? rank_outcome::outcome_kind::signalled : rank_outcome::outcome_kind::exited));
      CHECK(ends.back().code == (each.signal > 0 ? each.signal : each.exit_code));
      CHECK(no_children());
      CHECK(belongings() == before);
      try {
        processes{ranks}.run(body);
        CHECK_MESSAGE(false, "the parent was not told");
      } catch (const belay::comm_error& error) {
        CHECK(error.about().culprits == std::vector<int>{culprit});
        CHECK(error.about().signal == each.signal);
      }
    }
  }
}

TEST_CASE("a rank that dies while a peer copies its memory is told with its signal, not as unreadable memory") {
  for (int attempt = 0; attempt < 30; ++attempt) {
    const auto ends = processes{2}.outcomes([attempt](auto& rank) {
      std::vector<float> x(1 << 20);
      std::atomic<int> done{0};
      std::thread killer;
      if (rank.number() == 1) {
        killer = std::thread([&] {
          while (done.load() < 2) belay::relax();
          // Another moment of the third call each time.
          for (int i = 0; i < attempt * 400; ++i) belay::relax();
          ::kill(::getpid(), SIGKILL);
        });
      }
      try {
        for (;; ++done) rank.world().all_reduce(std::span(x), belay::maximum);
      } catch (const belay::comm_error& error) {
        return std::to_string(error.about().signal) + " " + error.what();
      }
    });
    CAPTURE(attempt);
    CAPTURE(ends[0].result);
    CHECK(ends[1].code == SIGKILL);
    CHECK(ends[0].result.find(std::to_string(SIGKILL) + " ") == 0);
  }
}

TEST_CASE("a body that throws is told to all, with its words") {
  const auto ends = processes{3}.outcomes([](auto& rank) {
    rank.world().barrier();
    if (rank.number() == 1) throw std::domain_error("the culprit's own words");
    return failure_of(rank).message;
  });
  CHECK(ends[1].how == rank_outcome::outcome_kind::threw);
  CHECK(ends[1].what == "the culprit's own words");
  for (int q : {0, 2})
    CHECK(ends[static_cast<std::size_t>(q)].result.find("the culprit's own words") != std::string::npos);
}

TEST_CASE("a stopped peer is an error after the stall limit, and only after") {
  const auto ends = processes{3, {.timeout = 60s, .stall_limit = 200ms}}.outcomes([](auto& rank) {
    rank.world().barrier();
    if (rank.number() == 2) {
      ::raise(SIGSTOP);
      return std::string("woken");
    }
    const auto what = failure_of(rank);
    // The rank that saw it first wakes it, so that the run ends.
    ::kill(rank.state()->pid_of(2), SIGCONT);
    return std::string(name(what.fault)) + " " + std::to_string(what.culprits.at(0)) + " " + what.message;
  });
  for (int q : {0, 1}) {
    const std::string& told = ends[static_cast<std::size_t>(q)].result;
    CAPTURE(told);
    CHECK(told.find("peer_failed 2 rank 2 (stopped, after barrier #0") == 0);
    CHECK(told.find("has been stopped for 0.2") != std::string::npos);
  }
}

TEST_CASE("a rank that stays stopped when the others have given up does not keep its parent waiting") {
  const auto ends = processes{3, {.timeout = 60s, .stall_limit = 200ms}}.outcomes([](auto& rank) {
    rank.world().barrier();
    if (rank.number() == 2) ::raise(SIGSTOP);
    return failure_of(rank).culprits.at(0);
  });
  CHECK(ends[0].how == rank_outcome::outcome_kind::returned);
  CHECK(ends[1].how == rank_outcome::outcome_kind::returned);
  CHECK(ends[2].how == rank_outcome::outcome_kind::signalled);
  CHECK(ends[2].code == SIGKILL);
  CHECK(no_children());
}

TEST_CASE(
    "a deadline before the stall limit: the stopped rank is the culprit, not one that waits for it in another group") {
  const auto body = [](auto& rank) {
    const int pid = ::getpid();
    std::vector<int> pids(3);
    rank.world().all_gather(std::span<const int>(&pid, 1), std::span(pids));
    if (rank.number() == 2) ::raise(SIGSTOP);
    // Rank 1 waits for the stopped one, rank 0 for rank 1, and gives up first.
    if (rank.number() == 1) return rank.group(std::vector<int>{1, 2}).barrier();
    while (belay::state_of_process(pids[2]) != belay::process_state::stopped) std::this_thread::yield();
    rank.group(std::vector<int>{0, 1}).within(1500ms).barrier();
  };
  try {
    processes{3, {.timeout = 20s, .stall_limit = 20s}}.run(body);
    FAIL("nobody gave up");
  } catch (const belay::comm_error& error) {
    CAPTURE(error.what());
    CHECK(error.about().fault == belay::comm_fault::timeout);
    CHECK(error.about().culprits == std::vector<int>{2});
    CHECK(error.about().message.find("rank 1 (") == 0);
    CHECK(error.about().message.find("holds the others up") != std::string::npos);
  }
}

TEST_CASE("the deadline of one call names the ranks that have not arrived and how they are") {
  const auto told = processes{3}.run([](auto& rank) {
    std::string out;
    if (rank.number() == 0) {
      try {
        rank.world().within(1s).barrier();
      } catch (const belay::comm_error& error) {
        out = std::string(name(error.fault())) + ": " + error.about().message;
      }
    } else {
      const auto mine = rank.group(std::vector<int>{1, 2});
      try {
        while (true) mine.barrier();
      } catch (const belay::comm_error&) {
      }
    }
    return out;
  });
  CHECK(told[0].find("timeout: ") == 0);
  CHECK(told[0].find("rank 1 (") != std::string::npos);
  CHECK(told[0].find("barrier #") != std::string::npos);
  CHECK(told[0].find("of group 1") != std::string::npos);
}

TEST_CASE("forking beside other threads is refused in words") {
  std::atomic<bool> over{false};
  std::thread other([&] { over.wait(false); });
  CHECK_THROWS_WITH_AS(processes{2}.run([](auto&) {}), doctest::Contains("1 other threads of this process are alive"),
                       belay::usage_error);
  over = true;
  over.notify_one();
  other.join();
}

TEST_CASE("too little memory for what the ranks share is an error with bytes") {
  try {
    processes{2, {.staging_bytes = std::size_t{1} << 44}}.run([](auto&) {});
    CHECK_MESSAGE(false, "it was there");
  } catch (const belay::budget_error& error) {
    CHECK(error.requested_bytes() > std::size_t{1} << 44);
  }
  const auto told = processes{2}.run([](auto& rank) {
    try {
      (void)rank.world().make_symmetric(std::size_t{1} << 44);
    } catch (const belay::budget_error& error) {
      rank.world().barrier();  // the group is usable
      return error.requested_bytes() >= std::size_t{1} << 44;
    }
    return false;
  });
  for (bool ok : told) CHECK(ok);
}

TEST_CASE("children die with their parent, also when it is killed") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    ::close(ends[0]);
    (void)processes{3}.outcomes([&](auto& rank) {
      const pid_t mine = ::getpid();
      (void)!::write(ends[1], &mine, sizeof mine);
      while (true) rank.world().barrier();
    });
    ::_exit(0);
  }
  ::close(ends[1]);
  pid_t children[3] = {};
  for (pid_t& child : children) REQUIRE(::read(ends[0], &child, sizeof child) == sizeof child);
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  pid_t none = 0;
  CHECK(::read(ends[0], &none, sizeof none) == 0);  // the last writer is gone
  ::close(ends[0]);
}

TEST_CASE("survivors of a killed rank go on in a smaller world, in their order, with fresh memory") {
  const auto ends = processes{4, {.timeout = 60s}}.outcomes([](auto& rank) {
    belay::symmetric_heap heap{rank.world(), {.bytes = 4096}};
    std::vector<float> x(10, 1.0F);
    std::string out;
    {
      std::vector<belay::pending> lost;
      if (rank.number() != 1) lost.push_back(rank.world().start_all_reduce(std::span(x), belay::sum));
      // Rank 1 dies when all others have started; transfers are no part of a group's order.
      std::byte has_started[3] = {};
      for (int r = 0, i = 0; r < rank.size(); ++r) {
        if (r == 1) continue;
        const std::span<std::byte> word(&has_started[i++], 1);
        const belay::p2p here[] = {belay::p2p::receive(r, word)};
        const belay::p2p there[] = {belay::p2p::send(1, std::span<const std::byte>(word))};
        if (rank.number() == 1) rank.world().exchange(here);
        if (rank.number() == r) rank.world().exchange(there);
      }
      if (rank.number() == 1) ::raise(SIGKILL);
      const auto first = failure_of(rank);
      auto rest = rank.shrink();
      try {
        for (belay::pending& call : lost) std::move(call).wait();
      } catch (const belay::comm_error& error) {
        out += name(error.fault());
      }
      out += std::string(" ") + name(failure_of(rank).fault) + " " + std::to_string(first.culprits.at(0)) + ":";
      belay::symmetric_heap again{rest.world(), {.bytes = 4096}};
      const auto slot = again.lease(4, "x");
      int ones[2] = {rest.number(), 1};
      rest.world().all_reduce(std::span<int>(ones), belay::sum);
      (void)slot;
      out += " " + std::to_string(rest.number()) + "/" + std::to_string(rest.size()) + " " + std::to_string(ones[0]) +
             " " + std::to_string(ones[1]) + " " +
             std::to_string(rest.survivors()[static_cast<std::size_t>(rest.number())]);
    }
    return out;
  });
  CHECK(ends[0].result == "revoked revoked 1: 0/3 3 3 0");
  CHECK(ends[2].result == "revoked revoked 1: 1/3 3 3 2");
  CHECK(ends[3].result == "revoked revoked 1: 2/3 3 3 3");
}

TEST_CASE("a stopped rank is killed before the others go on without it") {
  const auto ends = processes{3, {.timeout = 60s, .stall_limit = 200ms}}.outcomes([](auto& rank) {
    rank.world().barrier();
    if (rank.number() == 0) ::raise(SIGSTOP);
    failure_of(rank);
    auto rest = rank.shrink();
    rest.world().barrier();
    return rest.size();
  });
  CHECK(ends[0].how == rank_outcome::outcome_kind::signalled);
  CHECK(ends[0].code == SIGKILL);
  for (int q : {1, 2}) CHECK(ends[static_cast<std::size_t>(q)].result == std::string("\2\0\0\0", 4));
}

TEST_CASE("a forked child of a rank cannot speak for it, at any check level") {
  const auto sums = processes{3, {.timeout = 20s}}.run([](auto& rank) {
    const auto& world = rank.world();
    int wrong = 0;
    for (int call = 0; call < 3; ++call) {
      const pid_t child = forked([&] {
        std::vector<int> ones(call == 1 ? 1 : 100'000, 1);
        try {
          if (call == 0)
            world.barrier();
          else
            world.all_reduce(std::span(ones), belay::sum);
        } catch (const belay::usage_error&) {
          return rank.size() == 3 ? 7 : 8;
        }
        return 9;
      });
      // A release build does not look at each call: the memory that ranks share is not there.
      wrong += reaped(child) != (belay::checked(belay::check_level::local) ? 7 : 1000 + SIGSEGV);
    }
    std::vector<int> ones(100, 1);
    world.all_reduce(std::span(ones), belay::sum);
    return ones[99] + 10 * wrong;
  });
  CHECK(sums == std::vector<int>{3, 3, 3});
}
