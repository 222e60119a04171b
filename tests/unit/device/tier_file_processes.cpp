// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a process that ends leaves of its tier's file: nothing.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "belay/device/tier_file.hpp"
#include "support/tier_file.hpp"

using namespace tier_files;

namespace {

[[nodiscard]] std::uintmax_t free_bytes(const std::string& path) { return std::filesystem::space(path).free; }

}  // namespace

TEST_CASE_TEMPLATE("a killed process leaves nothing in the directory", Way, by_thread, by_kernel_ring) {
  const calm before;
  if (!exists<Way>()) return;
  const folder there;
  for (const int refused : {0, EOPNOTSUPP}) {  // unnamed, and named and unlinked
    now.open_unnamed = refused;
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      belay::tier_file<typename Way::calls> file(there.path, std::size_t{64} << 12, 4, Way::access);
      const blocks memory(std::size_t{16} << 12, 1);
      char told = '.';
      for (;;) {  // killed while transfers are under way
        belay::file_transfer one = file.start_write(0, memory.all());
        belay::file_transfer other = file.start_write(std::uint64_t{32} << 12, memory.all());
        one.wait();
        if (told == '.' && ::write(ready[1], &told, 1) == 1) told = ' ';
      }
    }
    char told = ' ';
    REQUIRE(::read(ready[0], &told, 1) == 1);
    CHECK(there.empty());
    REQUIRE(::kill(child, SIGKILL) == 0);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    CHECK(there.empty());
    ::close(ready[0]);
    ::close(ready[1]);
  }
}

TEST_CASE("the bytes are there from the start, and free again afterwards") {
  // In memory, where no one else writes so much at the same time.
  const std::string there = "/dev/shm";
  constexpr std::size_t bytes = std::size_t{256} << 20;
  if (free_bytes(there) < 2 * bytes) {
    MESSAGE("skipped: too little room in ", there);
    return;
  }
  const std::uintmax_t before = free_bytes(there);
  {
    const belay::tier_file<> file(there, bytes, 1);
    CHECK(free_bytes(there) + bytes / 2 < before);
  }
  CHECK(free_bytes(there) + bytes / 2 > before);
}
