// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// belay-run as a user meets it: a program that is started, prints, is interrupted and killed.
#include <doctest/doctest.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/backend/host/bootstrap/bootstrap_socket.hpp"
#include "belay/backend/host/bootstrap/private_directory.hpp"
#include "belay/backend/host/failure/watched_process.hpp"
#include "belay/comm.hpp"
#include "unit/backend/forked.hpp"

#ifdef BELAY_RUN

#include "unit/tools/started.hpp"

namespace {

using belay::host::watched_process;

outcome shell(int ranks, const std::string& script, const char* grace = "5") {
  return run({"-n", std::to_string(ranks), "--grace", grace, "sh", "-c", script});
}

// Sorted, because ranks print when they like.
std::string sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream all(text);
  for (std::string line; std::getline(all, line);) lines.push_back(line + "\n");
  std::sort(lines.begin(), lines.end());
  std::string out;
  for (const std::string& line : lines) out += line;
  return out;
}

bool gone_soon(pid_t pid) {
  const auto watched = watched_process::watch(pid);
  if (!watched) return true;
  pollfd entry{watched->fd(), POLLIN, 0};
  return ::poll(&entry, 1, 20'000) > 0;
}

}  // namespace

TEST_CASE("every line comes with its rank, on the stream it was printed on") {
  const outcome result = shell(3, "echo one $BELAY_RANK of $BELAY_SIZE; echo two >&2; printf 'no newline'");
  CHECK(result.code == 0);
  CHECK(sorted_lines(result.out) ==
        "[0] no newline\n[0] one 0 of 3\n[1] no newline\n[1] one 1 of 3\n[2] no newline\n[2] one 2 of 3\n");
  CHECK(sorted_lines(result.error) == "[0] two\n[1] two\n[2] two\n");
  CHECK(run({"-n", "2", "true"}).out.empty());
}

TEST_CASE("lines are never mixed, bytes stay what they are, empty lines are lines") {
  const outcome bytes = shell(1, "printf 'a\\000b\\377\\r\\n\\n\\nlast'");
  CHECK(bytes.out == std::string("[0] a\0b\377\r\n[0] \n[0] \n[0] last\n", 29));
  const outcome many = shell(4,
                             "i=0; while [ $i -lt 300 ]; do printf \"$BELAY_RANK\"; printf \"%0500d\" 7; echo x; "
                             "i=$((i+1)); done");
  CHECK(many.code == 0);
  CHECK(many.out.size() == 4 * 300 * (4 + 1 + 500 + 2));
  std::istringstream all(many.out);
  for (std::string line; std::getline(all, line);) {
    REQUIRE(line.size() == 506);
    REQUIRE(line[1] == line[4]);
    REQUIRE(line.back() == 'x');
  }
  const outcome longest = shell(2, "head -c 3000000 /dev/zero | tr '\\000' x");
  CHECK(longest.out.size() == 2 * (4 + 3'000'000 + 1));
}

TEST_CASE("the exit code is the first failing rank's, or 128 and its signal") {
  CHECK(shell(3, "exit 0").code == 0);
  const outcome code = shell(3, "[ $BELAY_RANK = 1 ] && exit 7; exit 0");
  CHECK(code.code == 7);
  CHECK(code.error == "belay-run: rank 1 exited with code 7\n");
  const outcome killed = shell(2, "[ $BELAY_RANK = 1 ] && kill -9 $$; exit 0");
  CHECK(killed.code == 128 + SIGKILL);
  CHECK(killed.error == "belay-run: rank 1 was ended by SIGKILL (9)\n");
  CHECK(shell(2, "ulimit -c 0; kill -SEGV $$").code == 128 + SIGSEGV);
}

TEST_CASE("ranks that stopped as asked are no failure: nobody is hurried, and the code is theirs") {
  const outcome stopped = shell(3, "exit 75", "0.1");
  CHECK(stopped.code == 75);
  CHECK(stopped.error.empty());
  CHECK(shell(3, "[ $BELAY_RANK = 1 ] && exit 75; exit 0").code == 75);
  const outcome failed = shell(3, "[ $BELAY_RANK = 1 ] && exit 4; exit 75");
  CHECK(failed.code == 4);
  CHECK(failed.error == "belay-run: rank 1 exited with code 4\n");
}

TEST_CASE("when one fails the others have some time, then SIGTERM, then SIGKILL; the first one's code stays") {
  const outcome own = shell(3, "[ $BELAY_RANK = 1 ] && exit 3; sleep 0.05; echo ends itself; exit 4");
  CHECK(own.code == 3);
  CHECK(sorted_lines(own.out) == "[0] ends itself\n[2] ends itself\n");
  const outcome told = shell(2, "[ $BELAY_RANK = 1 ] && exit 3; trap 'echo told; exit 5' TERM; sleep 20 & wait", "1");
  CHECK(told.code == 3);
  CHECK(told.out == "[0] told\n");
  CHECK(told.error.find("SIGTERM to ranks that still run: 0\n") != std::string::npos);
  const outcome deaf = shell(2, "[ $BELAY_RANK = 0 ] && exit 3; trap '' TERM; while true; do sleep 20; done", "0.2");
  CHECK(deaf.code == 3);
  CHECK(deaf.error.find("SIGKILL to ranks that still run: 1\n") != std::string::npos);
  const outcome stopped = shell(2, "[ $BELAY_RANK = 0 ] && exit 3; kill -STOP $$", "0.2");
  CHECK(stopped.code == 3);
}

TEST_CASE("a command line that makes no sense, and a program that cannot be started") {
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{},
                                             {"-n"},
                                             {"-n", "0", "true"},
                                             {"-n", "x", "true"},
                                             {"-n", "-1", "true"},
                                             {"-n", "5000", "true"},
                                             {"-n", "2"},
                                             {"true"},
                                             {"--nonsense", "-n", "2", "true"},
                                             {"-n", "2", "--grace", "soon", "true"},
                                             {"-n", "2", "--timeout", "0", "true"},
                                             {"-n", "2", "--timeout", "nan", "true"}}) {
    const outcome result = run(wrong);
    CHECK(result.code == 2);
    CHECK(result.error.find("belay-run: ") == 0);
    CHECK(result.out.empty());
  }
  CHECK(run({"--help"}).out.find("-n N") != std::string::npos);
  const outcome none = run({"-n", "3", "/nowhere/program"});
  CHECK(none.code == 127);
  CHECK(none.error == "belay-run: /nowhere/program: No such file or directory\n");
  CHECK(run({"-n", "2", "/etc/passwd"}).code == 126);
}

TEST_CASE("with too few descriptors the limit is named, and nothing is left") {
  int failed = 0;
  for (rlim_t most = 5;; ++most) {
    CAPTURE(most);
    launched one({"-n", "2", "true"}, "/dev/null", {}, [most] {
      ::close_range(3, ~0U, 0);  // what the tests' starter left open would count too
      const rlimit limit{most, most};
      ::setrlimit(RLIMIT_NOFILE, &limit);
    });
    const outcome result = one.wait();
    CHECK(one.sockets() == 0);
    if (result.code == 0) break;
    ++failed;
    CAPTURE(result.error);
    CHECK(result.code == 1);
    CHECK(result.error.find("RLIMIT_NOFILE of this process is " + std::to_string(most)) != std::string::npos);
  }
  CHECK(failed > 5);
}

TEST_CASE("what follows the program's name is the program's; flags may be written as one word") {
  CHECK(run({"-n", "1", "echo", "-n", "3", "--help", "--", ""}).out == "[0] 3 --help -- \n");
  CHECK(sorted_lines(run({"-n2", "--grace=1", "--", "echo", "x"}).out) == "[0] x\n[1] x\n");
  CHECK(sorted_lines(run({"-n", "5", "--grace=3", "--ranks", "2", "--grace=1", "echo", "x"}).out) == "[0] x\n[1] x\n");
  CHECK(run({"-n", "1", "--timeout", "2.5", "sh", "-c", "echo $BELAY_TIMEOUT"}).out.find("[0] 2.5") == 0);
}

TEST_CASE("the token stands neither in the environment nor in the arguments") {
  const outcome result =
      shell(1,
            "tr '\\000' '\\n' < /proc/$$/environ | grep BELAY | grep -v BELAY_TEST; test -S $BELAY_BOOTSTRAP_SOCKET && "
            "echo door; "
            "head -c 40 /proc/$$/fd/$BELAY_BOOTSTRAP_SECRET_FD | wc -c; set -- /proc/$$/fd/*; echo $#");
  CHECK(result.code == 0);
  std::istringstream lines(result.out);
  std::vector<std::string> all;
  for (std::string line; std::getline(lines, line);) all.push_back(line);
  CHECK(std::count_if(all.begin(), all.end(), [](auto& line) { return line.find("BELAY_") == 4; }) == 4);
  CHECK(std::count(all.begin(), all.end(), "[0] door") == 1);
  CHECK(std::count(all.begin(), all.end(), "[0] 32") == 1);
  CHECK(result.out.find("BELAY_BOOTSTRAP_SECRET_FD=") != std::string::npos);
  // The token, and what this process hands on to anybody.
  const scratch folder;
  const std::string direct = "sh -c 'set -- /proc/$$/fd/*; echo $#' > " + folder.path() + "/count";
  REQUIRE(std::system(direct.c_str()) == 0);
  CHECK(std::stoi(all.back().substr(4)) == std::stoi(contents(folder.path() + "/count")) + 1);
}

TEST_CASE("rank 0 reads our input, the others have none") {
  const scratch folder;
  std::ofstream(folder.path() + "/in") << "a line\n";
  const outcome result = run({"-n", "2", "cat"}, folder.path() + "/in");
  CHECK(result.code == 0);
  CHECK(result.out == "[0] a line\n");
}

TEST_CASE("Ctrl-C and SIGTERM reach every rank, once, and belay-run waits for them") {
  for (int number : {SIGINT, SIGTERM, SIGHUP}) {
    CAPTURE(number);
    launched one({"-n", "2", "sh", "-c",
                  "trap 'echo got it; exit 0' INT TERM HUP; echo ready; while true; do sleep 0.01; done"});
    CHECK(one.wait_for_lines("out", 2).size() == 2);
    ::kill(one.pid(), number);
    const outcome result = one.wait();
    CHECK(result.code == 0);
    CHECK(sorted_lines(result.out) == "[0] got it\n[0] ready\n[1] got it\n[1] ready\n");
    CHECK(one.sockets() == 0);
  }
  launched one({"-n", "2", "sh", "-c", "sleep 30 & echo ready; wait"});
  CHECK(one.wait_for_lines("out", 2).size() == 2);
  ::kill(one.pid(), SIGINT);
  CHECK(one.wait().code == 128 + SIGINT);
}

#ifdef BELAY_TRAIN_MOE
TEST_CASE("a trainer that gets SIGTERM saves one step of all ranks, ends with 75, and goes on from there") {
  const scratch saves;
  const std::string folder = saves.path() + "/saved";
  const auto train = [&](const std::string& steps) {
    return std::vector<std::string>{"-n",     "2",    BELAY_TRAIN_MOE, "--backend",  "processes",
                                    "--mesh", "dp=2", "--sequence",    "16",         "--micro-batches",
                                    "2",      "--micro-batch-size",    "2",          "--steps",
                                    steps,    "--checkpoint",          folder,       "--resume"};
  };
  launched one(train("1000000"));
  CHECK(one.wait_for_lines("out", 8).size() >= 8);  // it trains
  ::kill(one.pid(), SIGTERM);
  const outcome stopped = one.wait();
  CAPTURE(stopped.error);
  CHECK(stopped.code == 75);
  std::vector<std::string> saved;
  for (const auto& each : std::filesystem::directory_iterator(folder)) saved.push_back(each.path().filename());
  REQUIRE(saved.size() == 1);
  CHECK(std::filesystem::exists(folder + "/" + saved[0] + "/manifest.json"));
  const unsigned long step = std::stoul(saved[0].substr(5));
  CHECK(step > 0);
  CHECK(stopped.out.find("stopped as asked after step " + std::to_string(step) + ";") != std::string::npos);
  const outcome resumed = run(train(std::to_string(step + 1)));
  CAPTURE(resumed.error);
  CHECK(resumed.code == 0);
  CHECK(resumed.out.find("resumed from " + folder + "/" + saved[0]) != std::string::npos);
  CHECK(resumed.out.find(std::to_string(step + 1) + " steps, loss ") != std::string::npos);
}
#endif

TEST_CASE("started with signals ignored, as scripts start things in the background, ranks can be ended nevertheless") {
  const std::vector<int> background{SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGTSTP, SIGUSR1};
  const char* const script = "grep SigIgn /proc/self/status; sleep 20 & echo ready; wait";
  launched one({"-n", "2", "sh", "-c", script}, "/dev/null", background);
  const auto lines = one.wait_for_lines("out", 4);
  CHECK(std::count(lines.begin(), lines.end(), "[0] SigIgn:\t0000000000000000") == 1);
  CHECK(std::count(lines.begin(), lines.end(), "[1] SigIgn:\t0000000000000000") == 1);
  ::kill(one.pid(), SIGINT);
  CHECK(one.wait().code == 128 + SIGINT);
  // nohup is for the ranks too.
  launched kept({"-n", "1", "grep", "SigIgn", "/proc/self/status"}, "/dev/null", {SIGHUP});
  CHECK(kept.wait().out == "[0] SigIgn:\t0000000000000001\n");
}

TEST_CASE("Ctrl-Z stops belay-run and every rank, fg lets all go on; a pause of all is no stall of one") {
  launched one({"-n", "3", "--stall", "1", this_program(), "--no-skip", "--test-case=*as a rank*"});
  std::vector<pid_t> ranks(3);
  for (const std::string& line : one.wait_for_lines("error", 3)) {
    ranks.at(static_cast<std::size_t>(line[1] - '0')) = std::stoi(line.substr(11));
  }
  for (int round = 0; round < 2; ++round) {
    ::kill(one.pid(), SIGTSTP);
    int status = 0;
    REQUIRE(::waitpid(one.pid(), &status, WUNTRACED) == one.pid());
    REQUIRE(WIFSTOPPED(status));
    for (const pid_t rank : ranks) CHECK(is_stopped_soon(rank, true));
    // Longer than the stall limit; nobody ends meanwhile.
    const auto watched = watched_process::watch(ranks[0]);
    pollfd entry{watched->fd(), POLLIN, 0};
    CHECK(::poll(&entry, 1, 1500) == 0);
    ::kill(one.pid(), SIGCONT);
    REQUIRE(::waitpid(one.pid(), &status, WCONTINUED) == one.pid());
    for (const pid_t rank : ranks) CHECK(is_stopped_soon(rank, false));
  }
  ::kill(ranks[1], SIGKILL);
  const outcome result = one.wait();
  CAPTURE(result.error);
  CHECK(result.code == 128 + SIGKILL);
  CHECK(result.error.find("[0] peer_failed, rank 1, signal 9") != std::string::npos);
  CHECK(result.error.find("stopped") == std::string::npos);
}

TEST_CASE("no process is left: not by an end, not by a kill of belay-run, not what ranks leave behind") {
  const outcome orphans = shell(2, "setsid sleep 60 >/dev/null 2>&1 & echo $!");
  CHECK(orphans.code == 0);
  std::istringstream lines(orphans.out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) CHECK(gone_soon(std::stoi(line.substr(4))));
  CHECK(count == 2);

  launched one({"-n", "3", "sh", "-c", "sleep 60 & echo $!; echo $$; wait"});
  const auto pids = one.wait_for_lines("out", 6);
  REQUIRE(pids.size() == 6);
  CHECK(one.sockets() == 1);
  ::kill(one.pid(), SIGKILL);
  CHECK(one.wait().code == 1000 + SIGKILL);
  for (const std::string& line : pids) CHECK(gone_soon(std::stoi(line.substr(4))));
  // Its directory is all that is left, until the next start.
  CHECK(one.sockets() == 1);
  CHECK(belay::host::remove_stale_files(one.file("run")) == 1);
  CHECK(one.sockets() == 0);
}

TEST_CASE("a reader that stops reading ends the ranks as in any pipeline") {
  const pid_t child = forked([] {
    const std::string command = std::string(BELAY_RUN) + " -n 2 yes | head -n 3 > /dev/null";
    return std::system(command.c_str()) == 0 ? 0 : 1;
  });
  CHECK(reaped(child) == 0);
}

TEST_CASE("ranks that join are one world; a kill is told to the others, which say so, and is the exit code") {
  launched one({"-n", "3", this_program(), "--no-skip", "--test-case=*as a rank*"});
  const auto lines = one.wait_for_lines("error", 3);
  REQUIRE(lines.size() == 3);
  CHECK(one.sockets() == 0);
  for (const std::string& line : lines) {
    if (line.find("[1] joined ") == 0) ::kill(std::stoi(line.substr(11)), SIGKILL);
  }
  const outcome result = one.wait();
  CHECK(result.code == 128 + SIGKILL);
  for (const char* const told : {"[0] peer_failed, rank 1, signal 9", "[2] peer_failed, rank 1, signal 9",
                                 "belay-run: rank 1 was ended by SIGKILL (9)", "belay-run: rank 1 "}) {
    CAPTURE(result.error);
    CHECK(result.error.find(told) != std::string::npos);
  }
}

TEST_CASE("a flight file is written for a world that failed, and for no other") {
  const scratch folder;
  ::setenv("BELAY_FLIGHT_DIR", (folder.path() + "/flights").c_str(), 1);
  CHECK(run({"-n", "2", "false"}).code == 1);
  CHECK(run({"-n", "2", this_program(), "--no-skip", "--test-case=*a rank that returns*"}).code == 0);
  CHECK(entries_of(folder.path() + "/flights") == 0);
  launched one({"-n", "2", this_program(), "--no-skip", "--test-case=*as a rank*"});
  for (const std::string& line : one.wait_for_lines("error", 2)) {
    if (line.find("[1] joined ") == 0) ::kill(std::stoi(line.substr(11)), SIGKILL);
  }
  CHECK(one.wait().code == 128 + SIGKILL);
  ::unsetenv("BELAY_FLIGHT_DIR");
  CHECK(entries_of(folder.path() + "/flights", "belay-flight-") == 1);
}

TEST_CASE("ranks that join and return end with 0; one that never joins is waited for by none") {
  const outcome good = run({"-n", "2", this_program(), "--no-skip", "--test-case=*a rank that returns*"});
  CHECK(good.code == 0);
  CHECK(good.error.empty());
  const outcome half =
      run({"-n", "2", "sh", "-c",
           "[ $BELAY_RANK = 1 ] && exit 0; exec " + this_program() + " --no-skip '--test-case=*as a rank*'"});
  CHECK(half.code == 3);
  CHECK(half.error.find("[0] peer_failed, rank 1") != std::string::npos);
}

// Not tests: what the ranks above run.

TEST_CASE("as a rank" * doctest::skip()) {
  try {
    belay::host::world::from_env().run([](auto& self) {
      self.world().barrier();
      std::fprintf(stderr, "joined %d\n", static_cast<int>(::getpid()));
      while (true) self.world().barrier();
    });
  } catch (const belay::comm_error& error) {
    std::fprintf(stderr, "%s, rank %d, signal %d\n", belay::name(error.fault()), error.about().culprits.at(0),
                 error.about().signal);
    std::fflush(nullptr);
    ::_exit(3);
  }
}

TEST_CASE("a rank that returns" * doctest::skip()) {
  belay::host::world::from_env().run([](auto& self) { self.world().barrier(); });
}

#endif
