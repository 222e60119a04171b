// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/device/available_memory.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

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

TEST_CASE("pages of files that can be dropped at once are free, used lately or not") {
  SUBCASE("of the machine") {
    const std::string free = "MemTotal:  9000 kB\nMemFree:  100 kB\nMemAvailable:   5000 kB\nActive(file): 3000 kB\n";
    CHECK(belay::left_on_machine(free + "Mlocked: 700 kB\nDirty:   0 kB\nWriteback:   0 kB\n") == 5000 * 1024);
    CHECK(belay::left_on_machine(free + "Dirty:  200 kB\nWriteback:  30 kB\nWritebackTmp: 9 kB\n") == 4770 * 1024);
    CHECK(belay::left_on_machine(free + "Dirty: 9999 kB\n") == 0);
    CHECK(belay::left_on_machine("") == ~std::uint64_t{0});
  }
  const std::string root = "/tmp/belay-test-" + std::to_string(::getpid());
  const auto left = [&](const char* groups, const std::string& folder, const std::string& limit,
                        const std::string& usage, const std::string& stat) {
    std::filesystem::create_directories(root + folder);
    std::ofstream(root + folder + limit) << "1000000\n";
    std::ofstream(root + folder + usage) << "950000\n";
    std::ofstream(root + folder + "/memory.stat") << stat;
    const std::uint64_t out = belay::left_in_control_groups(groups, root);
    std::filesystem::remove_all(root);
    return out;
  };
  SUBCASE("of groups of version 2") {
    const auto with = [&](const std::string& stat) {
      return left("0::/a\n", "/a", "/memory.max", "/memory.current", "anon 1000\nfile 920000\n" + stat);
    };
    CHECK(with("inactive_file 100000\nactive_file 800000\n") == 950000);
    CHECK(with("active_file 800000\nunevictable 40000\n") == 850000);  // the locked ones are in no list of file pages
    CHECK(with("file_dirty 60000\nfile_writeback 7000\ninactive_file 100000\nactive_file 800000\n") == 883000);
    CHECK(with("file_dirty 99000\nactive_file 8000\n") == 50000);  // never less than what is not used at all
    CHECK(with("shmem 900000\nactive_anon 900000\n") == 50000);
  }
  SUBCASE("of groups of version 1, with all below them") {
    const auto with = [&](const std::string& stat) {
      return left("4:memory:/a\n", "/memory/a", "/memory.limit_in_bytes", "/memory.usage_in_bytes",
                  "cache 920000\ndirty 1\ninactive_file 2\nactive_file 3\n" + stat);
    };
    CHECK(with("total_inactive_file 100000\ntotal_active_file 800000\n") == 950000);
    CHECK(with("total_dirty 60000\ntotal_writeback 7000\ntotal_inactive_file 100000\ntotal_active_file 800000\n") ==
          883000);
  }
}
