// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the benchmark of collectives refuses before anything runs, mpirun included, and what it says beforehand.
#include <doctest/doctest.h>

#if __has_include(<CLI/CLI.hpp>)

#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "collectives/options.hpp"

namespace {

struct parsed {
  std::optional<bench::options> what;
  int code = 0;
  std::string said;  // on standard error
};

parsed parse(std::vector<std::string> flags) {
  flags.insert(flags.begin(), "bench");
  std::vector<char*> words;
  for (std::string& flag : flags) words.push_back(flag.data());
  words.push_back(nullptr);
  char name[] = "/tmp/belay_options_XXXXXX";
  const int file = ::mkstemp(name), before = ::dup(2);
  ::dup2(file, 2);
  parsed out;
  out.what = bench::parse_options(static_cast<int>(flags.size()), words.data(), out.code);
  std::fflush(stderr);
  ::dup2(before, 2);
  ::close(before);
  char text[4096];
  out.said.assign(text, static_cast<std::size_t>(::pread(file, text, sizeof text, 0)));
  ::close(file);
  ::unlink(name);
  return out;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string notes_of(const parsed& of) {
  std::string out;
  for (const std::string& note : of.what->notes) out += note + "\n";
  return out;
}

// An environment variable that is gone at the end.
class variable {
 public:
  variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  variable(const variable&) = delete;
  variable& operator=(const variable&) = delete;
  ~variable() { ::unsetenv(name_); }

 private:
  const char* name_;
};

}  // namespace

TEST_CASE("a flag that is given twice takes the last value") {
  const parsed twice =
      parse({"--ranks", "2", "--op", "broadcast", "--ranks=3", "--min", "8", "--op", "all_reduce", "--min", "16"});
  REQUIRE(twice.what);
  CHECK(twice.what->ranks == 3);
  CHECK(twice.what->min == 16);
  CHECK(twice.what->ops == std::vector{bench::op::all_reduce});
  CHECK(parse({"--ranks", "2", "--ranks", "none"}).code == 2);
}

TEST_CASE("an algorithm that is none, or none for the ranks, is refused with 2") {
  const parsed none = parse({"--algorithm", "pusch"});
  CHECK(none.code == 2);
  CHECK(has(none.said, "pusch"));
  CHECK(has(none.said, "one_shot"));
  const parsed mpi = parse({"--as", "mpi", "--algorithm", "push"});
  CHECK(mpi.code == 2);
  CHECK(has(mpi.said, "ranks of mpi send messages"));
  CHECK(parse({"--as", "mpi", "--algorithm", "auto"}).what);
  CHECK(parse({"--algorithm", "push"}).what->algorithm == "push");
}

TEST_CASE("--algorithm comes before BELAY_ALGORITHM, and what is in force is said") {
  {
    const variable set("BELAY_ALGORITHM", "pull");
    const parsed alone = parse({});
    CHECK(alone.what->algorithm == "pull");
    CHECK(has(notes_of(alone), "BELAY_ALGORITHM=pull is in force"));
    CHECK(has(notes_of(parse({"--as", "mpi"})), "BELAY_ALGORITHM=pull is not for ranks of mpi"));
    const parsed both = parse({"--algorithm", "push"});
    CHECK(both.what->algorithm == "push");
    CHECK(has(notes_of(both), "--algorithm push comes before BELAY_ALGORITHM=pull"));
    CHECK(std::getenv("BELAY_ALGORITHM") == nullptr);  // or the library would go by it where the flag says auto
  }
  const variable wrong("BELAY_ALGORITHM", "pusch");
  CHECK(parse({}).code == 2);
}

TEST_CASE("fp8 is moved: an operation that reduces is refused, in a list it is left out") {
  const parsed reduced = parse({"--type", "fp8", "--op", "all_reduce"});
  CHECK(reduced.code == 2);
  CHECK(has(reduced.said, "fp8"));
  CHECK(has(reduced.said, "never reduced"));
  CHECK(parse({"--type", "fp8", "--op", "all_reduce,all_gather"}).what);
}

TEST_CASE("sizes of which none holds an element for each rank are refused") {
  const auto none = parse({"--min", "1", "--max", "3"});
  CHECK(none.code == 2);
  CHECK(has(none.said, "no size between holds an element"));
  CHECK(parse({"--min", "1", "--max", "4"}).what);
  CHECK(parse({"--min", "1", "--max", "3", "--op", "all_reduce,barrier"}).what);  // which has no size
  CHECK(parse({"--op", "all_gather", "--ranks", "7", "--min", "8", "--max", "20"}).code == 2);
  CHECK(parse({"--iters", "0"}).code == 2);
}

TEST_CASE("a file that cannot be written is refused, and which folder is missing is said") {
  const parsed nowhere = parse({"--json", "/nowhere/at/all.json"});
  CHECK(nowhere.code == 2);
  CHECK(has(nowhere.said, "--json /nowhere/at/all.json: cannot be written (there is no folder /nowhere)"));
}

TEST_CASE("ranks that share cores are announced") {
  const long cores = ::sysconf(_SC_NPROCESSORS_ONLN);
  if (cores >= 64) return;
  CHECK(has(notes_of(parse({"--ranks", std::to_string(cores + 1)})), "ranks share"));
  CHECK(parse({"--ranks", "1"}).what->notes.empty());
}

#endif
