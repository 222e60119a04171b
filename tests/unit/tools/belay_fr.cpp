// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The built program over files that the library wrote, and over files that somebody spoilt.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "belay/backend/host/failure/flight_dump.hpp"
#include "belay/backend/host/membership/thread_membership.hpp"
#include "belay/backend/host/options.hpp"
#include "belay/backend/host/rendezvous/group_state.hpp"
#include "unit/tools/program_output.hpp"

using namespace program_output;

namespace {

namespace host = belay::host;
using nlohmann::json;

outcome belay_fr(const std::string& arguments) { return run(std::string("'") + BELAY_FR + "' " + arguments); }

std::string content_of(const std::string& path) {
  std::stringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}
void write(const std::string& path, const std::string& content) { std::ofstream(path) << content; }

// Four ranks at their third all_reduce, of which rank 2 was killed before it and rank 3 is far behind.
std::string flight_in(const scratch& folder) {
  const host::control_shape shape =
      host::control_shape_for(4, host::address_space::several, host::checked_options({}, {}));
  const host::anonymous_memory memory(host::control_block::bytes_for(shape));
  host::world_status world(host::control_block::make(memory.data(), shape));
  host::group_directory registry(world, 0);
  const int everybody[] = {0, 1, 2, 3};
  static_cast<void>(registry.join(everybody, {}));
  for (int rank = 0; rank < 4; ++rank) {
    auto& recorder = world.recorder(rank, belay::lane::caller);
    const int done = rank == 3 ? 1 : 2;
    for (int k = 0; k < done; ++k) {
      recorder.enter(belay::operation::all_reduce, 0, static_cast<std::uint64_t>(k), 4096, "train \"x\".cpp", 80 + k);
      recorder.finish(k == 0 ? 2500 : 0);
    }
    if (rank >= 2) continue;
    recorder.enter(belay::operation::all_reduce, 0, 2, 4096, "train \"x\".cpp", 82);
    recorder.wait_from(host::world_status::microseconds(host::world_status::clock::now()) - 4'000'000);
  }
  world.abort({belay::comm_fault::peer_failed, {2}, "", "train \"x\".cpp:81", 9, -1});
  return host::write_flight_file(world, folder / "");
}

}  // namespace

TEST_CASE("the verdict comes first, then a line a rank, then which rank is missing where") {
  const scratch folder;
  const outcome told = belay_fr(flight_in(folder));
  CAPTURE(told.out);
  CHECK(told.code == 0);
  CHECK(
      told.out.starts_with("rank 2 was ended by SIGKILL (9) after all_reduce #1 at train \"x\".cpp:81; "
                           "ranks 0, 1 have waited in all_reduce #2 at train \"x\".cpp:82 for 4.00 s\n"));
  CHECK(has(told, "cause:  peer_failed by rank 2, SIGKILL (9), at train \"x\".cpp:81\n"));
  CHECK(has(told, "1     thread  running  IN all_reduce #2     world  4096   train \"x\".cpp:82  4.00 s\n"));
  CHECK(has(told, "3     thread  running  after all_reduce #0  world  4096   train \"x\".cpp:80  2.5 ms\n"));
  CHECK(has(told,
            "group  operation      at                rank 0       rank 1       rank 2       rank 3\n"
            "world  all_reduce #0  train \"x\".cpp:80  done 2.5 ms  done 2.5 ms  done 2.5 ms  done 2.5 ms\n"
            "world  all_reduce #1  train \"x\".cpp:81  done         done         done         NEVER CAME\n"
            "world  all_reduce #2  train \"x\".cpp:82  IN 4.00 s    IN 4.00 s    NEVER CAME   NEVER CAME\n"));
}

TEST_CASE("--last, --rank and --json") {
  const scratch folder;
  const std::string file = flight_in(folder);
  const outcome last = belay_fr(file + " --last 1");
  CHECK(has(last, "all_reduce #2"));
  CHECK(has(last, "rank 3\nworld  all_reduce #0"));  // its own last one
  const outcome one = belay_fr("--rank 3 " + file);
  CHECK(has(one, "operations that rank 3 called (1 kept, 0 older ones not):"));
  CHECK(has(one, "0  world  all_reduce #0  4096   train \"x\".cpp:80  done  2.5 ms"));
  CHECK(!has(one, "NEVER"));
  const json data = json::parse(belay_fr("--json " + file).out);
  CHECK(data["cause"]["signal"] == 9);
  CHECK(data["by_rank"][3]["last_called"]["number"] == 0);
  CHECK(data["operations"].size() == 3);
  CHECK(data["operations"][2]["by_rank"][0]["presence"] == "inside");
  CHECK(data["operations"][2]["by_rank"][2]["presence"] == "never");
  CHECK(json::parse(belay_fr("--json --rank 1 " + file).out)["by_rank"].size() == 1);
  CHECK(belay_fr(file + " --rank 4").code == 2);
  CHECK(has(belay_fr(file + " --rank 4"), "the file has ranks 0 to 3"));
}

TEST_CASE("several files are told one after the other, also beside one that cannot be read") {
  const scratch folder;
  const std::string file = flight_in(folder);
  const outcome told = belay_fr(file + " " + (folder / "none.json") + " " + file);
  CHECK(told.code == 1);
  const std::size_t first = told.out.find("== " + file + " ==\nrank 2 was ended");
  REQUIRE(first != std::string::npos);
  CHECK(told.out.find("== " + file + " ==\n", first + 1) != std::string::npos);
  CHECK(has(told, "none.json"));
}

TEST_CASE("a file that was cut off anywhere is refused with the byte where it ends") {
  const scratch folder;
  const std::string whole = content_of(flight_in(folder));
  const std::string cut = folder / "cut.json";
  for (std::size_t length = 1; length + 2 < whole.size(); length += 1 + whole.size() / 40) {
    write(cut, whole.substr(0, length));
    const outcome told = belay_fr(cut);
    CAPTURE(length);
    CAPTURE(told.out);
    CHECK(told.code == 1);
    CHECK(has(told, cut + ": is cut off: it ends in the middle"));
    CHECK(has(told, "(byte " + std::to_string(length) + ")"));
  }
}

TEST_CASE("damaged and foreign files are refused with the place and what is wrong there") {
  const scratch folder;
  const std::string whole = content_of(flight_in(folder));
  const std::string file = folder / "damaged.json";
  const auto refused = [&](const std::string& from, const std::string& to, const std::string& expected,
                           const std::string& before) {
    std::string spoilt = whole;
    const std::size_t at = spoilt.find(from);
    REQUIRE(at != std::string::npos);
    spoilt.replace(at, from.size(), to);
    write(file, spoilt);
    const outcome told = belay_fr(file);
    CAPTURE(told.out);
    CHECK(told.code == 1);
    CHECK(has(told, expected));
    // The byte is that of the object or array which begins there.
    const std::size_t place = spoilt.find(before);
    CHECK(has(told, place == 0 ? expected + "\n" : "(byte " + std::to_string(place) + ")"));
  };
  refused("\"belay_flight\": 1", "\"belay_flight\": 2", "another version of Belay", "{\"belay_flight");
  refused("\"number\": 1,", "\"nunber\": 1,", "\"number\" is missing", "{\"n\": 1,");
  refused("\"finished\": false", "\"finished\": 0", "\"finished\" is neither true nor false", "{\"n\": 2,");
  refused("\"signal\": 9", "\"signal\": -99999999999", "\"signal\" is out of range: -99999999999", "{\"kind\"");
  refused("\"signal\": 9", "\"signal\": 9.5", "\"signal\" is no whole number", "{\"kind\"");
  refused("\"culprits\": [2]", "\"culprits\": [4]", "\"culprits\" names no rank: 4", "{\"kind\"");
  refused("\"ranks\": 4", "\"ranks\": 5", "holds 4 of 5 ranks", "[\n{\"rank\": 0");
  refused("{\"rank\": 1", "{\"rank\": 2", "ranks are not in order", "{\"rank\": 2");
  refused("\"site\": \"train",
          "\"site\": \"tr\xff"
          "in",
          "ill-formed UTF-8 byte", "\xff");
  write(file, "{\"a\": [1, 2]}");
  CHECK(has(belay_fr(file), file + ": is no flight file of Belay\n"));
  write(file, "not JSON");
  CHECK(has(belay_fr(file), file + ": is damaged or no flight file: "));
  CHECK(!has(belay_fr(file), "(byte 0)"));
  write(file, std::string(100000, '['));
  CHECK(has(belay_fr(file), file + ": nests deeper than 64 levels (byte 64)\n"));
  refused("\"signal\": 9", "\"signal\": 1e999", "cause.signal is 1e999, which is beyond what a number can hold",
          "1e999");
  refused("\"signal\": 9", "\"signal\": NaN", "is damaged or no flight file: cause.signal is NaN", "NaN");
  write(file, "");
  CHECK(has(belay_fr(file), file + ": is empty\n"));
  CHECK(has(belay_fr(folder / "none.json"), "cannot be opened: No such file or directory\n"));
  CHECK(belay_fr(folder / "none.json").code == 1);
  CHECK(belay_fr(folder / "").code == 1);
  CHECK(belay_fr("").code != 0);
}

TEST_CASE("a value that nests without end is refused where it would be quoted in a message, too") {
  const scratch folder;
  const std::string whole = content_of(flight_in(folder));
  const std::string file = folder / "deep.json";
  for (const std::string field : {"\"culprits\": [2]", "\"signal\": 9", "\"ranks\": 4"}) {
    std::string spoilt = whole;
    const std::string name = field.substr(0, field.find(' ') + 1);
    spoilt.replace(spoilt.find(field), field.size(), name + std::string(200'000, '[') + std::string(200'000, ']'));
    write(file, spoilt);
    const outcome told = belay_fr(file);
    CAPTURE(told.out.substr(0, 300));
    CHECK(told.code == 1);
    CHECK(has(told, file + ": nests deeper than 64 levels (byte "));
    spoilt = whole;
    spoilt.replace(spoilt.find(field), field.size(), name + "[" + std::string(40, '[') + std::string(41, ']'));
    write(file, spoilt);
    CHECK(belay_fr(file).code == 1);
  }
}

TEST_CASE("what the ranks called things is shown and not obeyed, in tables, as JSON and in refusals") {
  const scratch folder;
  const std::string whole = content_of(flight_in(folder));
  const std::string file = folder / "names.json";
  std::string spoilt = whole;
  const std::string hostile = "\\u001b]0;x\\u0007\\u009b2J\\n\x7f\\u202e";
  for (std::size_t at = spoilt.find("train \\\"x"); at != std::string::npos; at = spoilt.find("train \\\"x")) {
    spoilt.replace(at, 9, hostile);
  }
  const auto shows = [](const outcome& told) {
    CAPTURE(told.out);
    for (const char c : told.out) CHECK((c == '\n' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f)));
    CHECK(!has(told, "\u009b"));
    CHECK(!has(told, "\u202e"));
  };
  write(file, spoilt);
  shows(belay_fr(file));
  CHECK(has(belay_fr(file), "all_reduce #0  \\x1b]0;x\\x07\\u009b2J\\n\\x7f\\u202e"));
  shows(belay_fr("--rank 0 " + file));
  shows(belay_fr("--json " + file));
  CHECK(json::accept(belay_fr("--json " + file).out));
  const std::string named = folder / "a\x1b[31m\nb.json";
  write(named, "[\"\x1b\"]");
  shows(belay_fr("'" + named + "'"));
  CHECK(has(belay_fr("'" + named + "'"), "a\\x1b[31m\\nb.json: is damaged"));
}

TEST_CASE("a pipe is refused instead of being waited for") {
  const scratch folder;
  const std::string pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(has(belay_fr(pipe), pipe + ": is not a regular file\n"));
}
