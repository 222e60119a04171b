// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rank that is killed cannot tell what it did; its part of the shared block can.
#include <doctest/doctest.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "belay/backend/host/failure/flight_dump.hpp"
#include "belay/backend/host/processes.hpp"

namespace {

using nlohmann::json;
namespace host = belay::host;

// What three ranks leave, of which rank 1 comes to `end` after ten barriers and the others to an eleventh.
json flight_of(const std::function<void()>& end, std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  std::string folder = (std::filesystem::temp_directory_path() / "belay-flights-XXXXXX").string();
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  ::setenv("BELAY_FLIGHT_DIR", folder.c_str(), 1);
  const auto ends = host::processes{3, {.timeout = timeout}}.outcomes([&](host::rank& rank) {
    for (int k = 0; k < 10; ++k) rank.world().barrier(belay::where{"train.cpp", "", 20 + k});
    if (rank.number() == 1) end();
    rank.world().barrier(belay::where{"train.cpp", "", 99});
  });
  ::unsetenv("BELAY_FLIGHT_DIR");
  CHECK(ends.size() == 3);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  REQUIRE(files.size() == 1);
  std::ifstream in(files.front());
  json out = json::parse(in);
  std::filesystem::remove_all(folder);
  CHECK(out["transport"] == "processes");
  CHECK(out["by_rank"][1]["lanes"]["caller"]["entries"].size() == 10);
  CHECK(out["by_rank"][1]["lanes"]["caller"]["entries"][9]["site"] == "train.cpp:29");
  CHECK(out["by_rank"][1]["pid"] > 0);
  return out;
}

}  // namespace

TEST_CASE("a killed rank's history is in the file, with the signal or the exit code") {
  for (int signal : {SIGKILL, SIGSEGV, SIGABRT}) {
    const json flight = flight_of([&] {
      ::signal(signal, SIG_DFL);
      ::kill(::getpid(), signal);
    });
    CHECK(flight["cause"]["signal"] == signal);
    CHECK(flight["cause"]["culprits"] == std::vector<int>{1});
    CHECK(flight["by_rank"][1]["state"] == "gone");
    const std::string said = flight["verdict"];
    CAPTURE(said);
    CHECK(said.starts_with("rank 1 was ended by " + belay::signal_name(signal) +
                           " after barrier #9 at train.cpp:29; rank"));
  }
  const json left = flight_of([] { ::_exit(7); });
  CHECK(left["cause"]["exit_code"] == 7);
  CHECK(left["verdict"].get<std::string>().find("exited with code 7 after barrier #9 at train.cpp:29") !=
        std::string::npos);
}

TEST_CASE("what a process threw, and which rank a deadline missed, is told as among threads") {
  const json thrown = flight_of([] { throw std::domain_error("its own words"); });
  CHECK(
      thrown["verdict"].get<std::string>().starts_with("rank 1 threw after barrier #9 at train.cpp:29: its own words"));
  const json late = flight_of(
      [] {
        while (::getppid() != 1 && std::filesystem::is_empty(*belay::flight_folder())) ::sched_yield();
      },
      std::chrono::seconds(1));
  CHECK(late["verdict"].get<std::string>().starts_with(
      "rank 1 never entered barrier #10 at train.cpp:99; ranks 0, 2 have waited there for "));
}
