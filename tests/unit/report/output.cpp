// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/report/output.hpp"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "unit/report/support/file_size_limit.hpp"

TEST_CASE("a line arrives in one piece") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);  // keeps the bounds of writes
  belay::output out(ends[0], "socket");
  const std::string line(3000, 'x');
  out.write(line + "\n");
  out.write("second\n");
  char room[4096];
  CHECK(::read(ends[1], room, sizeof room) == 3001);
  CHECK(::read(ends[1], room, sizeof room) == 7);
  CHECK(out.written() == 3008);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("a full disk and a place that does not exist are file errors with their names") {
  belay::output full("/dev/full");
  CHECK_THROWS_WITH_AS(full.write("line\n"), doctest::Contains("/dev/full: cannot be written: No space left"),
                       belay::file_error);
  CHECK_THROWS_WITH_AS(belay::output("/nowhere/at/all"),
                       doctest::Contains("/nowhere/at/all: cannot be opened for writing: No such file or "
                                         "directory (there is no folder /nowhere)"),
                       belay::file_error);
}

TEST_CASE("room is asked for before a run, and nothing is kept of it") {
  char name[] = "/dev/shm/belay_output_XXXXXX";
  ::close(::mkstemp(name));
  belay::output out(name);
  out.write("line\n");
  CHECK_NOTHROW(out.expect_room(1 << 20));
  struct stat now;
  REQUIRE(::stat(name, &now) == 0);
  CHECK(now.st_size == 5);
  CHECK(now.st_blocks * 512 < 1 << 20);
  const report_test::file_size_limit full(1 << 16);
  CHECK_THROWS_WITH_AS(out.expect_room(1 << 20), doctest::Contains(": cannot be written: File too large"),
                       belay::file_error);
  ::unlink(name);
}

TEST_CASE("what is in a stream's buffer comes first") {
  char name[] = "/tmp/belay_output_XXXXXX";
  std::FILE* stream = ::fdopen(::mkstemp(name), "w");
  std::fputs("one ", stream);
  belay::output out(stream, "stream");
  out.write("two\n");
  std::fclose(stream);
  std::ifstream in(name);
  CHECK(std::string(std::istreambuf_iterator<char>(in), {}) == "one two\n");
  ::unlink(name);
}
