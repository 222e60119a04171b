// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/backend/host/memory/memory_segment.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "belay/core/error.hpp"
#include "belay/device/available_memory.hpp"
#include "unit/backend/forked.hpp"

using belay::host::memory_segment;

namespace {

int memfd(std::size_t bytes, int seals, bool reserved) {
  const int file = ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(::ftruncate(file, static_cast<off_t>(bytes)) == 0);
  if (reserved) REQUIRE(::fallocate(file, 0, 0, static_cast<off_t>(bytes)) == 0);
  if (seals != 0) REQUIRE(::fcntl(file, F_ADD_SEALS, seals) == 0);
  return file;
}

}  // namespace

TEST_CASE("a segment is zeroed, reserved, of its exact size, private to the user and of a size that nobody changes") {
  const int before = open_descriptors();
  {
    const memory_segment memory = memory_segment::create("belay-test", 100'001);
    CHECK(memory.size_bytes() == 100'001);
    for (std::size_t i = 0; i < memory.size_bytes(); ++i) REQUIRE(memory.data()[i] == std::byte{0});
    struct stat status = {};
    REQUIRE(::fstat(memory.fd(), &status) == 0);
    CHECK((status.st_mode & 07777) == 0600);
    CHECK(status.st_size == 100'001);
    CHECK(status.st_blocks * 512 >= 100'001);
    CHECK(::fcntl(memory.fd(), F_GETFD) == FD_CLOEXEC);
    for (off_t size : {off_t{0}, off_t{100'000}, off_t{100'002}}) {
      CHECK(::ftruncate(memory.fd(), size) == -1);
      CHECK(errno == EPERM);
    }
    CHECK(::fcntl(memory.fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == -1);
    CHECK(errno == EPERM);
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("processes share it, also by an attached descriptor, and it stays when the descriptor is forgotten") {
  memory_segment memory = memory_segment::create("belay-test", 8192);
  memory_segment other = memory_segment::attach(::dup(memory.fd()), 8192);
  CHECK(other.data() != memory.data());
  memory.forget_descriptor();
  CHECK(memory.fd() == -1);
  const memory_segment moved = std::move(memory);
  CHECK(memory.data() == nullptr);
  const pid_t child = forked([&] {
    std::memcpy(moved.data() + 8000, "from the child", 15);
    return 0;
  });
  CHECK(reaped(child) == 0);
  CHECK(std::strcmp(reinterpret_cast<const char*>(other.data() + 8000), "from the child") == 0);
}

TEST_CASE("what is no sealed, reserved memory of the announced size is not attached, and closed") {
  const int before = open_descriptors();
  CHECK_THROWS_AS((void)memory_segment::attach(-1), belay::file_error);
  CHECK_THROWS_WITH_AS((void)memory_segment::attach(::open("/dev/null", O_RDWR)), doctest::Contains("no memfd"),
                       belay::file_error);
  CHECK_THROWS_AS((void)memory_segment::attach(::open("/proc/self/stat", O_RDONLY)), belay::file_error);
  CHECK_THROWS_WITH_AS((void)memory_segment::attach(memfd(4096, 0, true)), doctest::Contains("not sealed"),
                       belay::file_error);
  CHECK_THROWS_AS((void)memory_segment::attach(memfd(4096, F_SEAL_SHRINK, true)), belay::file_error);
  CHECK_THROWS_AS((void)memory_segment::attach(memfd(4096, F_SEAL_GROW, true)), belay::file_error);
  constexpr int both = F_SEAL_SHRINK | F_SEAL_GROW;
  CHECK_THROWS_AS((void)memory_segment::attach(memfd(0, both, false)), belay::file_error);
  CHECK_THROWS_WITH_AS((void)memory_segment::attach(memfd(1 << 20, both, false)), doctest::Contains("not reserved"),
                       belay::file_error);
  CHECK_THROWS_AS((void)memory_segment::attach(memfd(4096, both | F_SEAL_WRITE, true)), belay::file_error);
  CHECK_THROWS_WITH_AS((void)memory_segment::attach(memfd(4096, both, true), 8192), doctest::Contains("8192 bytes"),
                       belay::file_error);
  CHECK(memory_segment::attach(memfd(4096, both, true)).size_bytes() == 4096);
  CHECK(open_descriptors() == before);
}

TEST_CASE("more than there is is refused with the bytes, and nothing is kept") {
  const int before = open_descriptors();
  const std::size_t left = belay::available_memory();
  for (std::size_t bytes : {left + (std::size_t{1} << 30), std::size_t{1} << 50, ~std::size_t{0}}) {
    CAPTURE(bytes);
    try {
      (void)memory_segment::create("belay-test", bytes);
      FAIL("it was granted");
    } catch (const belay::budget_error& error) {
      CHECK(error.requested_bytes() == bytes);
      CHECK(error.available_bytes() < bytes);
      CHECK(std::string(error.what()).find("memory_segment.cpp") != std::string::npos);
    }
  }
  CHECK_THROWS_AS((void)memory_segment::create("belay-test", 0), belay::usage_error);
  CHECK(open_descriptors() == before);
  // Nothing of it was taken: other programs of this machine come and go, a tenth of it is not theirs.
  CHECK(belay::available_memory() > left / 10 * 9);
}

TEST_CASE("a limit on file sizes is an error with bytes, not a signal") {
  const pid_t child = forked([] {
    const rlimit limit{1 << 20, 1 << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    if (memory_segment::create("belay-test", 1 << 19).size_bytes() != 1 << 19) return 1;
    try {
      (void)memory_segment::create("belay-test", 1 << 21);
    } catch (const belay::budget_error& error) {
      return error.requested_bytes() == 1 << 21 && error.available_bytes() == 1 << 20 ? 0 : 2;
    }
    return 3;
  });
  CHECK(reaped(child) == 0);
}

TEST_CASE("address space that is not there is an error with bytes") {
  const pid_t child = forked([] {
    const rlimit limit{256 << 20, 256 << 20};
    ::setrlimit(RLIMIT_AS, &limit);
    try {
      (void)memory_segment::create("belay-test", 512 << 20);
    } catch (const belay::budget_error&) {
      return 0;
    }
    return 1;
  });
  CHECK(reaped(child) == 0);
}

TEST_CASE("signals do not disturb the reservation") {
  const pid_t child = forked([] {
    struct sigaction tick = {};
    tick.sa_handler = [](int) {};
    ::sigaction(SIGALRM, &tick, nullptr);
    const itimerval often{{0, 1000}, {0, 1000}};
    ::setitimer(ITIMER_REAL, &often, nullptr);
    const memory_segment memory = memory_segment::create("belay-test", 200 << 20);
    struct stat status = {};
    ::fstat(memory.fd(), &status);
    return status.st_blocks * 512 >= (200 << 20) ? 0 : 1;
  });
  CHECK(reaped(child) == 0);
}

TEST_CASE("the limits of control groups count, of old and of new ones, also those above") {
  const scratch root;
  const auto write = [&](const std::string& file, const std::string& text) {
    const std::filesystem::path path = root.path() + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  };
  const auto left = [&](const char* groups) { return belay::left_in_control_groups(groups, root.path()); };
  constexpr auto unlimited = std::numeric_limits<std::uint64_t>::max();
  CHECK(left("0::/a/b\n") == unlimited);
  write("/a/b/memory.max", "max\n");
  write("/a/b/memory.current", "1000\n");
  CHECK(left("0::/a/b\n") == unlimited);
  write("/a/memory.max", "5000\n");
  write("/a/memory.current", "3000\n");
  write("/a/memory.stat", "anon 1\ninactive_file 500\n");
  CHECK(left("0::/a/b\n") == 2500);
  CHECK(left("0::/\n") == unlimited);
  write("/a/memory.current", "9000\n");
  CHECK(left("0::/a/b\n") == 0);
  write("/memory/x/memory.limit_in_bytes", "700\n");
  write("/memory/x/memory.usage_in_bytes", "100\n");
  CHECK(left("9:name=systemd:/\n4:memory:/x/y\n0::/\n") == 600);
  CHECK(left("4:cpu,memory:/x\n") == 600);
  CHECK(left("4:cpu:/x\nnonsense\n:\n") == unlimited);
}
