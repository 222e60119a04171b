// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/core/policies.hpp"

#include <dirent.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "belay/core/unique_fd.hpp"

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

TEST_CASE("a folder is made, locked, listed and emptied by its descriptor, and a link is asked for itself") {
  posix_files files;
  std::string path = "/tmp/belay-policies-XXXXXX";
  REQUIRE(::mkdtemp(path.data()) != nullptr);
  const std::string inner = path + "/inner", link = path + "/link";
  CHECK(files.make_folder(inner.c_str(), 0700) == 0);
  CHECK(files.make_folder(inner.c_str(), 0700) == -1);
  CHECK(errno == EEXIST);
  REQUIRE(::symlink("inner", link.c_str()) == 0);
  struct stat found = {};
  CHECK((files.ask(link.c_str(), found) == 0 && S_ISDIR(found.st_mode)));
  CHECK((files.ask_link(link.c_str(), found) == 0 && S_ISLNK(found.st_mode)));
  CHECK(files.ask((path + "/none").c_str(), found) == -1);
  CHECK(is_absence(errno));
  const int folder = files.open(path.c_str(), O_RDONLY | O_DIRECTORY, 0);
  const int other = files.open(path.c_str(), O_RDONLY | O_DIRECTORY, 0);
  REQUIRE((folder >= 0 && other >= 0));
  CHECK((files.ask_open(folder, found) == 0 && S_ISDIR(found.st_mode)));
  CHECK(files.lock(folder) == 0);
  CHECK(files.lock(other) == -1);
  CHECK(errno == EWOULDBLOCK);
  alignas(dirent64) char entries[1024];
  std::string names;
  for (ssize_t got = files.list(folder, entries, sizeof entries), next = 0; next < got;) {
    const auto* const entry = reinterpret_cast<const dirent64*>(entries + next);
    next += entry->d_reclen;
    if (*entry->d_name != '.') names += entry->d_name[0];
  }
  CHECK((names == "il" || names == "li"));
  CHECK(files.remove_in(folder, "link") == 0);
  CHECK(files.remove_in(folder, "inner") == -1);  // a folder is none of its business
  CHECK(files.remove_folder(inner.c_str()) == 0);
  CHECK(files.close(folder) == 0);
  CHECK(files.close(other) == 0);
  CHECK(files.remove_folder(path.c_str()) == 0);
}
