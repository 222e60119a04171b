// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A run is killed at a random moment, over and over, and goes on: on as many ranks or on others. It never loses a
// committed checkpoint, never trains on half of one, and leaves nothing that the next start does not sweep.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "test_length.hpp"
#include "unit/train/support/checkpoint.hpp"

using namespace checkpoint_bench;

namespace {

constexpr std::size_t last_step = 10;

settings run_in(const std::string& folder, int ranks, std::size_t steps) {
  settings out;
  out.ranks = ranks;
  out.steps = steps;
  out.saved = {.folder = folder, .every = 1, .keep = 2, .ring_bytes = 0};
  return out;
}

// The state after each step of the run that nobody kills.
const record& undisturbed() {
  static const record out = train(run_in("", 2, last_step));
  return out;
}

// Of the checkpoints in a folder that a run writes to, the newest that has its manifest; 0: there is none.
std::uint64_t newest_manifest(const std::string& folder) {
  const std::vector<std::uint64_t> all = belay::checkpoint_folder<>(folder).committed();
  return all.empty() ? 0 : all.back();
}

// Trains in a process of its own, which is killed after `steps` of its steps and `spins` turns of a loop. The newest
// checkpoint that it had seen the manifest of, before the commit of any of its steps: one that no kill may lose.
std::uint64_t train_and_kill(const std::string& folder, std::size_t steps, std::size_t spins) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    settings with = run_in(folder, 2, last_step);
    with.before_commit = [&](int rank, std::size_t) {
      if (rank != 0) return;
      const std::uint64_t seen = newest_manifest(folder);
      static_cast<void>(!::write(ends[1], &seen, sizeof seen));
    };
    try {
      train(with);
    } catch (...) {
      ::_exit(3);
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  std::uint64_t known = 0;
  const auto hear = [&] {
    std::uint64_t seen = 0;
    if (::read(ends[0], &seen, sizeof seen) != static_cast<ssize_t>(sizeof seen)) return false;
    known = std::max(known, seen);
    return true;
  };
  for (std::size_t i = 0; i < steps && hear(); ++i) {
  }
  for (std::size_t i = 0; i < spins; ++i) {
    asm volatile("");
  }
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  while (hear()) {  // what it had said before
  }
  ::close(ends[0]);
  CHECK((WIFSIGNALED(status) || WEXITSTATUS(status) == 0));
  return known;
}

}  // namespace

TEST_CASE("killed at random, and resumed on the same and on other ranks") {
  const std::size_t kills = is_soak() ? 500 : 24;
  std::uint64_t state = 11;
  const auto random = [&](std::size_t below) {
    return static_cast<std::size_t>((state = state * 6364136223846793005U + 1442695040888963407U) >> 33U) % below;
  };
  std::size_t resumed_runs = 0;
  directory dir;
  std::string folder = dir / "run";
  std::uint64_t before = 0;  // the newest that was surely committed
  std::size_t seen_by_victims = 0;
  for (std::size_t kill = 0; kill < kills; ++kill) {
    const std::uint64_t known = train_and_kill(folder, 1 + random(4), random(4'000'000));
    seen_by_victims += known > before ? 1 : 0;
    before = std::max(before, known);
    settings look = run_in(folder, kill % 3 == 0 ? 2 : kill % 3 == 1 ? 1 : 3, 0);
    const record found = train(look);
    const std::uint64_t step = found.from.step;
    CHECK(step >= before);
    CHECK(apart(found.at.at(step), undisturbed().at.at(step)) == 0);
    if (std::filesystem::exists(folder)) {
      const std::vector<std::string> names = names_in(folder);
      CHECK(names.size() <= 2);  // as many as are kept, also where the kill came before a removal
      for (const std::string& name : names) CHECK(std::filesystem::exists(folder + "/" + name + "/manifest.json"));
    }
    resumed_runs += step > 0 ? 1 : 0;
    before = step;
    if (step < last_step) continue;
    folder = dir / ("run" + std::to_string(kill));
    before = 0;
  }
  CHECK(resumed_runs > kills / 2);
  CHECK(seen_by_victims > 0);  // checkpoints of the run that was killed, not of those before it
}

TEST_CASE("a commit that is lost is noticed: a victim tells of each that it has seen") {
  directory dir;
  const std::string folder = dir / "run";
  const std::uint64_t known = train_and_kill(folder, 6, 0);
  REQUIRE(known > 1);
  // What a run would leave that removes the newest instead of the oldest.
  for (std::uint64_t step = known; step <= last_step; ++step)
    std::filesystem::remove_all(belay::checkpoint_folder<>(folder).path_of(step));
  CHECK(train(run_in(folder, 2, 0)).from.step < known);
}
