// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/device/available_memory.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

TEST_CASE("a limit on addresses is a limit on memory") {
  CHECK(belay::left_in_address_space() > (std::size_t{1} << 40));  // no limit here
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    constexpr std::size_t room = std::size_t{1} << 28;
    const std::uint64_t pages = belay::number_after(belay::kernel_file("/proc/self/statm"), "").value_or(0);
    const rlimit limit{pages * 4096 + room, pages * 4096 + room};
    const bool set = ::setrlimit(RLIMIT_AS, &limit) == 0;
    const std::size_t left = belay::left_in_address_space();
    ::_exit(set && left <= room && left > room / 2 && belay::available_memory() <= left ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
