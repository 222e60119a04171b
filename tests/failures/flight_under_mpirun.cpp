// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Jobs under mpirun whose rank 1 fails leave one flight file, written by rank 0, and belay-fr reads it.
#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace {

using nlohmann::json;

std::string output_of(const std::string& command) {
  std::string out;
  std::FILE* const pipe = ::popen((command + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) out += static_cast<char>(c);
  static_cast<void>(::pclose(pipe));
  return out;
}

// What one job printed, and what belay-fr makes of the files it left.
struct job {
  std::string output;
  std::vector<std::string> files;
  std::string shown;
  json told;

  [[nodiscard]] int lines_with(const std::string& what) const {
    int count = 0;
    for (std::size_t at = output.find(what); at != std::string::npos; at = output.find(what, at + 1)) ++count;
    return count;
  }
  [[nodiscard]] const json& rank(std::size_t which) const { return told["by_rank"][which]; }
  // Whether a rank is in all_reduce #number.
  [[nodiscard]] std::string presence(std::uint64_t number, std::size_t rank) const {
    for (const json& row : told["operations"]) {
      if (row["group"] != 0 || row["lane"] != "caller" || row["number"] != number) continue;
      for (const json& part : row["by_rank"]) {
        if (part["rank"] == rank) return part["presence"];
      }
    }
    return "no such operation";
  }
};

job run(const std::string& mode, const std::string& mpirun_flags, const std::string& spin_policy) {
  std::string folder = (std::filesystem::temp_directory_path() / "belay-flight-XXXXXX").string();
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  const std::string flights = folder + "/made";
  job out;
  out.output = output_of("BELAY_FLIGHT_DIR=" + flights + " timeout -k 5 60 " BELAY_MPIRUN " " + mpirun_flags +
                         " -np 3 " BELAY_MPI_VICTIM " " + mode + " " + spin_policy);
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(flights, none))
    out.files.push_back(entry.path().string());
  if (out.files.size() == 1) {
    out.shown = output_of(std::string(BELAY_FR) + " " + out.files.front());
    out.told = json::parse(output_of(std::string(BELAY_FR) + " --json " + out.files.front()));
  }
  std::filesystem::remove_all(folder);
  return out;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a job without a failure leaves no file") {
  const job good = run("nothing", "", "60 30");
  CAPTURE(good.output);
  CHECK(good.lines_with("is done") == 3);
  CHECK(good.files.empty());
  CHECK(good.lines_with("belay:") == 0);
}

TEST_CASE("a rank that throws or returns early: one file, one verdict, also under plain mpirun") {
  for (const std::string mode : {"throw", "return"}) {
    for (const std::string flags : {"", "--enable-recovery"}) {
      const job failed = run(mode, flags, "60 30");
      CAPTURE(failed.output);
      CAPTURE(failed.shown);
      REQUIRE(failed.files.size() == 1);
      CHECK(failed.lines_with(failed.files.front()) == 1);
      CHECK(failed.told["transport"] == "mpi");
      CHECK(failed.told["told_by"] == 0);
      CHECK(failed.told["cause"]["kind"] == "peer_failed");
      CHECK(failed.told["cause"]["culprits"] == std::vector<int>{1});
      CHECK(
          contains(failed.shown, mode == "throw" ? "rank 1 threw after all_reduce #5" : "rank 1 (after all_reduce #5"));
      CHECK(failed.rank(1)["state"] == "left");
      // Its own report, not what others saw.
      CHECK(failed.rank(1)["last_called"]["number"] == 5);
      CHECK(failed.rank(1)["last_called"]["finished"] == true);
      // All had the result of #5; a rank that is slow to go on learns of the failure before it calls #6.
      const bool had_gone_on = failed.rank(0)["last_called"]["number"] == 6;
      if (!had_gone_on) CHECK(failed.rank(0)["last_called"]["number"] == 5);
      CHECK(failed.rank(0)["last_called"]["bytes"] == 400'000);
      CHECK(failed.rank(0)["last_called"]["finished"] == !had_gone_on);
      if (had_gone_on) CHECK(failed.presence(6, 1) == "never");
      CHECK(failed.presence(4, 2) == "finished");
      CHECK(failed.presence(0, 0) == "finished");
    }
  }
}

TEST_CASE("of a rank that died the file tells where it was last seen, and which ranks wait") {
  for (const std::string mode : {"kill", "exit"}) {
    const job failed = run(mode, "--enable-recovery", "40 30");
    CAPTURE(failed.output);
    CAPTURE(failed.shown);
    REQUIRE(failed.files.size() == 1);
    CHECK(failed.lines_with(failed.files.front()) == 1);
    CHECK(contains(failed.told["verdict"], "died: its process "));
    CHECK(contains(failed.told["verdict"], "ranks 0, 2 have waited in all_reduce #6 at "));
    CHECK(failed.rank(1)["state"] == "gone");
    CHECK(failed.rank(1)["last_called"]["finished"] == nullptr);  // no rank can know
    CHECK(failed.presence(5, 1) == "heard");
    CHECK(failed.presence(6, 1) == "never");
    CHECK(failed.presence(6, 0) == "inside");
    CHECK(failed.presence(6, 2) == "inside");
    CHECK(contains(failed.shown, "3 ranks under mpi, told by rank 0"));
    CHECK(contains(failed.shown, "SEEN IN all_reduce #5"));
  }
}

TEST_CASE("at the deadline the file tells that a rank waits in another group, and for which one") {
  const job late = run("elsewhere", "--enable-recovery", "1 30");
  CAPTURE(late.output);
  CAPTURE(late.shown);
  REQUIRE(late.files.size() == 1);
  CHECK(late.told["cause"]["kind"] == "timeout");
  const std::string said = late.told["verdict"];
  CHECK(contains(said, "rank 1 never entered all_reduce #6 at "));
  CHECK(contains(said, "rank 0 never entered barrier #0 of group "));
  CHECK(contains(said, " at elsewhere.cpp:7; rank 1 "));
  CHECK(contains(said, "they wait for each other"));
  CHECK(late.rank(1)["last_called"]["op"] == "barrier");
  CHECK(late.rank(1)["last_called"]["finished"] == false);
  CHECK(late.presence(5, 1) == "finished");
}

TEST_CASE("a rank that was stopped: the file is there before the job is aborted") {
  const job failed = run("stop", "--enable-recovery", "1.5 0.2");
  CAPTURE(failed.output);
  REQUIRE(failed.files.size() == 1);
  CHECK(failed.lines_with(failed.files.front()) == 1);
  CHECK(failed.rank(1)["state"] == "stopped");
  CHECK(failed.presence(6, 1) == "never");
}
