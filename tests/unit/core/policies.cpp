// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/core/policies.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <cstdlib>
#include <string>

namespace {

using namespace belay;

// The kind of clock a test of time-outs uses: nothing passes unless the code under test sleeps.
struct stepped_clock {
  std::int64_t time = 0;
  std::int64_t now() const { return time; }
  void sleep(std::int64_t nanoseconds) { time += nanoseconds; }
};

struct no_atomics {
  template <class T>
  using atomic = T;
  static void relax() {}
};

// A wait as protocols write it: the policy decides what time is.
template <clock_policy Clock>
bool gives_up_after(Clock& clock, std::int64_t limit) {
  const std::int64_t start = clock.now();
  while (clock.now() - start < limit) clock.sleep(limit / 4 + 1);
  return true;
}

}  // namespace

TEST_CASE("the machine's clock does not go back, and sleeping is at least noticed by it") {
  monotonic_clock clock;
  const std::int64_t before = clock.now();
  clock.sleep(0);
  clock.sleep(-1);
  clock.sleep(1000);
  CHECK(clock.now() >= before + 1000);
}

TEST_CASE("a wait written against the policy runs in a test's own time") {
  stepped_clock clock;
  CHECK(gives_up_after(clock, 3'600'000'000'000));
  CHECK(clock.now() >= 3'600'000'000'000);
}

TEST_CASE("a type without atomic operations is no atomics policy") {
  static_assert(atomics_policy<std_atomics>);
  static_assert(!atomics_policy<no_atomics> && !clock_policy<int> && !files_policy<monotonic_clock>);
  std_atomics::atomic<std::uint32_t> word{1};
  CHECK(word.fetch_add(2, std::memory_order_acq_rel) == 1);
  std_atomics::relax();
  CHECK(word.load(std::memory_order_acquire) == 3);
}

TEST_CASE("a file is written beside, synced, renamed and read back; a missing one says so by errno") {
  posix_files files;
  std::string path = "/tmp/belay-policies-XXXXXX";
  const int made = ::mkstemp(path.data());
  REQUIRE(made >= 0);
  CHECK(files.write_at(made, "belay", 5, 3) == 5);
  CHECK(files.sync(made) == 0);
  CHECK(files.close(made) == 0);
  const std::string moved = path + ".moved";
  CHECK(files.rename(path.c_str(), moved.c_str()) == 0);
  CHECK(files.open(path.c_str(), O_RDONLY, 0) == -1);
  CHECK(errno == ENOENT);
  const int again = files.open(moved.c_str(), O_RDONLY | O_CLOEXEC, 0);
  REQUIRE(again >= 0);
  char text[6] = {};
  CHECK(files.read_at(again, text, 5, 3) == 5);
  CHECK(std::string(text) == "belay");
  CHECK(files.read_at(again, text, 5, 8) == 0);
  CHECK(files.close(again) == 0);
  CHECK(files.remove(moved.c_str()) == 0);
}
