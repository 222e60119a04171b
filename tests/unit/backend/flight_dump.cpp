// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/backend/host/failure/flight_dump.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/backend/host/membership/thread_membership.hpp"
#include "belay/backend/host/options.hpp"
#include "belay/backend/host/rendezvous/group_state.hpp"
#include "belay/comm.hpp"

namespace {

using nlohmann::json;
namespace host = belay::host;

// A folder of its own for each test; gone with it.
class scratch {
 public:
  scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "belay-flight-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~scratch() { std::filesystem::remove_all(path_); }
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;

  [[nodiscard]] std::string path() const { return path_.string(); }
  [[nodiscard]] std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> out;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) out.push_back(entry.path());
    return out;
  }

 private:
  std::filesystem::path path_;
};

// What goes to standard error meanwhile, in a file.
class captured_errors {
 public:
  explicit captured_errors(const std::string& path) : path_(path), before_(::dup(STDERR_FILENO)) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(file, STDERR_FILENO);
    ::close(file);
  }
  ~captured_errors() {
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
  }
  captured_errors(const captured_errors&) = delete;
  captured_errors& operator=(const captured_errors&) = delete;

  [[nodiscard]] std::string text() const {
    std::stringstream out;
    out << std::ifstream(path_).rdbuf();
    return out.str();
  }

 private:
  std::string path_;
  int before_;
};

bool holds_flight(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") return true;
  }
  return false;
}

json json_in(const std::filesystem::path& path) {
  std::ifstream in(path);
  return json::parse(in);
}

// What a run of three ranks that fails leaves behind, read back.
json flight_of(host::world_options options, const std::function<void(host::rank&)>& body) {
  const scratch folder;
  ::setenv("BELAY_FLIGHT_DIR", folder.path().c_str(), 1);
  CHECK_THROWS((host::world{3, options}.run(body)));
  ::unsetenv("BELAY_FLIGHT_DIR");
  REQUIRE(folder.files().size() == 1);  // and nothing temporary
  struct stat facts{};
  REQUIRE(::stat(folder.files().front().c_str(), &facts) == 0);
  CHECK((facts.st_mode & 0777) == 0600);
  const json out = json_in(folder.files().front());
  CHECK(folder.files().front().filename() ==
        "belay-flight-" + std::to_string(out["job"].get<std::uint64_t>()) + ".json");
  CHECK(out["belay_flight"] == 1);
  CHECK(out["ranks"] == 3);
  CHECK(out["epoch"] == 0);
  CHECK(out["transport"] == "threads");
  CHECK(out["by_rank"].size() == 3);
  return out;
}

bool contains(const json& text, const std::string& part) {
  return text.get<std::string>().find(part) != std::string::npos;
}

// A block as ranks share it, for recorders filled by hand.
struct block {
  explicit block(int ranks, host::address_space space = host::address_space::one)
      : shape(host::control_shape_for(ranks, space, host::checked_options({}, {}))),
        memory(host::control_block::bytes_for(shape)),
        world(host::control_block::make(memory.data(), shape)) {}

  host::control_shape shape;
  host::anonymous_memory memory;
  host::world_status world;
};

}  // namespace

TEST_CASE("a deadline's file says which rank never came, where it was, and which waited since when") {
  const json flight = flight_of({.timeout = std::chrono::milliseconds(500)}, [](host::rank& rank) {
    for (int k = 0; k < 5; ++k) rank.world().barrier(belay::where{"train.cpp", "", 87});
    std::vector<float> x(4), all(12);
    if (rank.number() != 2) rank.world().all_gather(x, std::span(all), belay::where{"train.cpp", "", 88});
    // Rank 2 computes until the others have given up.
    const auto latest = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (rank.number() == 2 && !holds_flight(*belay::flight_folder()) && std::chrono::steady_clock::now() < latest) {
      std::this_thread::yield();
    }
    rank.world().barrier();
  });
  CHECK(flight["cause"]["kind"] == "timeout");
  CHECK(flight["cause"]["culprits"] == std::vector<int>{2});
  CHECK(contains(flight["verdict"],
                 "rank 2 never entered all_gather #5 at train.cpp:88; ranks 0, 1 have waited there for "));
  CHECK(contains(flight["verdict"], "rank 2 is running, after barrier #4 at train.cpp:87"));
  int longest = 0;  // of the rank whose deadline it was; the other may have come late
  for (std::size_t rank : {0U, 1U}) {
    const json& lane = flight["by_rank"][rank]["lanes"]["caller"];
    REQUIRE(lane["entries"].size() == 6);
    CHECK(lane["dropped"] == 0);
    const json& last = lane["entries"][5];
    CHECK(last["n"] == 5);
    CHECK(last["op"] == "all_gather");
    CHECK(last["number"] == 5);
    CHECK(last["group"] == 0);
    CHECK(last["bytes"] == 16);
    CHECK(last["site"] == "train.cpp:88");
    CHECK(last["finished"] == false);
    CHECK(last["waited_us"] > 0);
    longest = std::max(longest, last["waited_us"].get<int>());
    CHECK(lane["entries"][0]["finished"] == true);
  }
  CHECK(longest >= 450000);
  CHECK(flight["by_rank"][2]["state"] == "running");
  CHECK(flight["by_rank"][2]["lanes"]["caller"]["entries"].size() == 5);
  CHECK(flight["groups"][0]["members"] == std::vector<int>{0, 1, 2});
}

TEST_CASE("ranks that wait for each other in different groups are told so") {
  const json flight = flight_of({.timeout = std::chrono::milliseconds(500)}, [](host::rank& rank) {
    const std::vector<int> left{0, 1}, right{1, 2}, outer{0, 2};
    const auto ring = [&](const std::vector<int>& members) {
      const auto group = rank.group(members);
      group.barrier(belay::where{"ring.cpp", "", rank.number() + 1});
    };
    if (rank.number() == 0) ring(left);
    if (rank.number() == 1) ring(right);
    if (rank.number() == 2) ring(outer);
  });
  const std::string said = flight["verdict"];
  CAPTURE(said);
  CHECK(said.find("rank 1 never entered barrier #0 of group") != std::string::npos);
  CHECK(said.find("rank 2 never entered barrier #0 of group") != std::string::npos);
  CHECK(said.find("rank 0 never entered barrier #0 of group") != std::string::npos);
  CHECK(said.find("they wait for each other") != std::string::npos);
}

TEST_CASE("a mismatch's file holds both calls; an exception's the text that was thrown") {
  const json differs = flight_of({}, [](host::rank& rank) {
    std::vector<float> x(30);
    rank.world().barrier();
    if (rank.number() == 1)
      rank.world().broadcast(std::span(x), 2, belay::where{"b.cpp", "", 7});
    else
      rank.world().all_reduce(std::span(x), belay::sum, belay::where{"a.cpp", "", 5});
  });
  CHECK(differs["cause"]["kind"] == "mismatch");
  CHECK(differs["cause"]["culprits"] == std::vector<int>{1});
  CHECK(differs["cause"]["there"] == "b.cpp:7");
  CHECK(contains(differs["verdict"],
                 "the ranks do not agree on operation #1: ranks 0, 2 call all_reduce of 30 x F32 (sum) at a.cpp:5"));
  CHECK(contains(differs["verdict"], "rank 1 calls broadcast of 30 x F32 with root 2 at b.cpp:7"));
  CHECK(differs["by_rank"][1]["lanes"]["caller"]["entries"][1]["op"] == "broadcast");

  const json thrown = flight_of({}, [](host::rank& rank) {
    rank.world().barrier(belay::where{"x.cpp", "", 3});
    if (rank.number() == 2) throw std::domain_error("no such\nfile: \"a\\b\" \xff");
    rank.world().barrier(belay::where{"x.cpp", "", 9});
  });
  CHECK(thrown["cause"]["kind"] == "peer_failed");
  CHECK(thrown["cause"]["message"] == "rank 2 threw after barrier #0 at x.cpp:3: no such\nfile: \"a\\b\" \xef\xbf\xbd");
  CHECK(contains(thrown["verdict"], "rank 2 threw after barrier #0"));
}

TEST_CASE("started operations are told in a lane of their own") {
  const json flight = flight_of({.timeout = std::chrono::milliseconds(500)}, [](host::rank& rank) {
    std::vector<float> x(3);
    if (rank.number() == 1)
      rank.world().receive(0, std::span(x), 0, belay::where{"s.cpp", "", 5});
    else
      rank.world().start_all_reduce(std::span(x), belay::sum, belay::where{"s.cpp", "", 4}).wait();
  });
  CHECK(flight["by_rank"][0]["lanes"]["stream"]["entries"][0]["op"] == "all_reduce");
  CHECK(flight["by_rank"][0]["lanes"]["caller"]["entries"].empty());
  CHECK(contains(flight["verdict"], "rank 1 never entered started all_reduce #0 at s.cpp:4; rank"));
}

TEST_CASE("a rank that calls where the others start is told as one that calls something else") {
  const json flight = flight_of({}, [](host::rank& rank) {
    std::vector<float> x(3);
    if (rank.number() == 1) return rank.world().barrier(belay::where{"s.cpp", "", 5});
    rank.world().start_all_reduce(std::span(x), belay::sum, belay::where{"s.cpp", "", 4}).wait();
  });
  CHECK(flight["cause"]["kind"] == "mismatch");
  CHECK(contains(flight["verdict"], "call a started all_reduce at s.cpp:4"));
  CHECK(contains(flight["verdict"], "rank 1 calls barrier at s.cpp:5"));
}

TEST_CASE("nothing is written where no folder is named, and a good run leaves nothing") {
  const scratch folder;
  CHECK_THROWS(host::world{2}.run([](host::rank&) { throw std::domain_error("x"); }));
  CHECK(folder.files().empty());
  ::setenv("BELAY_FLIGHT_DIR", folder.path().c_str(), 1);
  host::world{2}.run([](host::rank& rank) { rank.world().barrier(); });
  ::unsetenv("BELAY_FLIGHT_DIR");
  CHECK(folder.files().empty());
}

TEST_CASE("two jobs at the same time leave a file and a line each, however many of their ranks fail") {
  const scratch folder;
  const captured_errors errors(folder.path() + "/errors");
  ::setenv("BELAY_FLIGHT_DIR", (folder.path() + "/made/").c_str(), 1);
  std::vector<std::thread> jobs;
  for (int job = 0; job < 2; ++job) {
    jobs.emplace_back([] {
      try {
        host::world{3}.run([](host::rank&) { throw std::domain_error("all of them"); });
      } catch (const std::domain_error&) {
      }
    });
  }
  for (std::thread& job : jobs) job.join();
  ::unsetenv("BELAY_FLIGHT_DIR");
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() + "/made")) {
    CHECK(json_in(entry.path())["cause"]["kind"] == "peer_failed");
    ++count;
  }
  CHECK(count == 2);
  const std::string said = errors.text();
  CHECK(std::count(said.begin(), said.end(), '\n') == 2);
  CHECK(said.starts_with("belay: rank "));
  CHECK(said.find("before its first operation: all of them [" + folder.path() + "/made/belay-flight-") !=
        std::string::npos);
}

TEST_CASE("odd sites and a full ring are kept: the newest entries, what was dropped counted") {
  const scratch folder;
  block made(2);
  auto& recorder = made.world.recorder(1, belay::lane::caller);
  const std::string odd = "dir \"x\"\\\x01\t\xc3\xa9\xe2\x82\xac\xf0\x9f\x8e\x88/\xc0\xaf\xed\xa0\x80.cpp";
  for (std::uint64_t k = 0; k < 5000; ++k) {
    recorder.enter(belay::operation::barrier, 0, k, 0, odd.c_str(), 12);
    if (k < 4999) recorder.finish(k);
  }
  made.world.abort({belay::comm_fault::peer_failed, {1}, "", "", 9, -1});
  const json flight = json_in(host::write_flight_file(made.world, folder.path()));
  const json& lane = flight["by_rank"][1]["lanes"]["caller"];
  CHECK(lane["dropped"] == 5000 - 4096);
  REQUIRE(lane["entries"].size() == 4096);
  CHECK(lane["entries"][0]["n"] == 5000 - 4096);
  CHECK(lane["entries"][0]["waited_us"] == 5000 - 4096);
  CHECK(lane["entries"][4095]["finished"] == false);
  const std::string bad = "\xef\xbf\xbd";
  const std::string expected =
      "dir \"x\"\\\x01\t\xc3\xa9\xe2\x82\xac\xf0\x9f\x8e\x88/" + bad + bad + bad + bad + bad + ".cpp:12";
  CHECK(lane["entries"][7]["site"] == expected);
  CHECK(contains(flight["verdict"], "rank 1 was ended by SIGKILL (9) in barrier #4999 at"));
}

TEST_CASE("how a process ended is told by signal or code, in or after which operation") {
  const auto said = [](int signal, int code, const std::string& message) {
    block made(4, host::address_space::several);
    for (int rank = 0; rank < 4; ++rank) {
      auto& recorder = made.world.recorder(rank, belay::lane::caller);
      recorder.enter(belay::operation::all_gather, 0, 117, 8, "train.cpp", 87);
      recorder.finish();
      if (rank == 2) continue;
      recorder.enter(belay::operation::all_gather, 0, 118, 8, "train.cpp", 88);
      recorder.wait_from(host::world_status::microseconds(host::world_status::clock::now()) - 2'500'000);
    }
    made.world.abort({belay::comm_fault::peer_failed, {2}, message, "", signal, code});
    return host::verdict(made.world);
  };
  const std::string rest =
      " after all_gather #117 at train.cpp:87; ranks 0, 1, 3 have waited in all_gather #118 at train.cpp:88 for 2.50 s";
  CHECK(said(11, -1, "") == "rank 2 was ended by SIGSEGV (11)" + rest);
  CHECK(said(40, -1, "") == "rank 2 was ended by signal 40" + rest);
  CHECK(said(0, 3, "") == "rank 2 exited with code 3" + rest);
  CHECK(said(0, 3, "it said why").starts_with("it said why (it exited with code 3); ranks 0, 1, 3 have waited"));
}

TEST_CASE("a folder that cannot be written is a file_error with the file's name, and never a second failure") {
  const scratch folder;
  block made(1);
  made.world.abort({belay::comm_fault::timeout, {0}, "late", "", 0, -1});
  std::ofstream(folder.path() + "/file") << "x";
  for (const std::string& wrong : {folder.path() + "/file", folder.path() + "/no/such", std::string("/proc")}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH_AS(host::write_flight_file(made.world, wrong),
                         doctest::Contains((wrong + "/belay-flight-").c_str()), belay::file_error);
    ::setenv("BELAY_FLIGHT_DIR", wrong.c_str(), 1);
    CHECK_THROWS_AS(host::world{2}.run([](host::rank&) { throw std::domain_error("x"); }), std::domain_error);
  }
  ::unsetenv("BELAY_FLIGHT_DIR");
  CHECK(folder.files().size() == 1);
  const std::string said = "No such file or directory (there is no folder " + folder.path() + "/no)";
  CHECK_THROWS_WITH_AS(host::write_flight_file(made.world, folder.path() + "/no/such"), doctest::Contains(said.c_str()),
                       belay::file_error);
}

namespace {

// The disk is full from the third write on.
struct full_disk : belay::posix_files {
  [[nodiscard]] static ssize_t write_at(int unique_fd, const void* from, std::size_t bytes, off_t offset) noexcept {
    if (offset < 100'000) return belay::posix_files::write_at(unique_fd, from, bytes, offset);
    errno = ENOSPC;
    return -1;
  }
};

}  // namespace

TEST_CASE("a disk that is full leaves no file, and the error tells the byte") {
  const scratch folder;
  block made(1);
  for (std::uint64_t k = 0; k < 4096; ++k)
    made.world.recorder(0, belay::lane::caller).enter(belay::operation::barrier, 0, k, 0, "a.cpp", 1);
  try {
    host::write_flight_file<full_disk>(made.world, folder.path());
    FAIL("written");
  } catch (const belay::file_error& error) {
    CHECK(error.offset() >= 100'000);
    CHECK(std::string(error.what()).find("cannot be written: No space left") != std::string::npos);
  }
  CHECK(folder.files().empty());
}

TEST_CASE("a file may be written while ranks run") {
  const scratch folder;
  block made(1);
  std::atomic<bool> over{false};
  std::thread rank([&] {
    for (std::uint64_t k = 0; !over; ++k) {
      made.world.recorder(0, belay::lane::caller)
          .enter(belay::operation::barrier, 0, k, 0, "a.cpp", static_cast<int>(k % 50));
      made.world.recorder(0, belay::lane::caller).finish();
    }
  });
  for (int round = 0; round < 5; ++round) {
    const json flight = json_in(host::write_flight_file(made.world, folder.path()));
    CHECK(flight["cause"]["kind"] == "none");
    std::uint64_t last = 0;
    for (const json& entry : flight["by_rank"][0]["lanes"]["caller"]["entries"]) {
      CHECK((entry["n"] == entry["number"] &&
             entry["site"] == "a.cpp:" + std::to_string(entry["n"].get<std::uint64_t>() % 50)));
      CHECK((last == 0 || entry["n"] > last));
      last = entry["n"];
    }
  }
  over = true;
  rank.join();
}
