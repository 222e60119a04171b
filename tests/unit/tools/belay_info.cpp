// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the built program tells is what this test finds out itself, also under limits that it sets before.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "belay/device/available_memory.hpp"
#include "belay/version.hpp"
#include "tools/belay_info/control_groups.hpp"
#include "unit/tools/program_output.hpp"

using namespace program_output;

namespace {

using nlohmann::json;

const std::string program = std::string("'") + BELAY_INFO + "'";

json facts(const std::string& before = "") {
  const outcome told = run(before + " " + program + " --json");
  CAPTURE(told.out);
  CHECK(told.code == 0);
  return json::parse(told.out);
}

json number_in(const std::string& path, const char* key = "", std::uint64_t unit = 1) {
  const auto found = belay::number_after(belay::kernel_file(path), key);
  return found ? json(*found * unit) : json(nullptr);
}

void write(const std::string& path, const std::string& content) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << content;
}

}  // namespace

TEST_CASE("belay-info tells what the kernel tells") {
  const json all = facts();
  CHECK(all["belay"]["version"] == std::to_string(BELAY_VERSION_MAJOR) + "." + std::to_string(BELAY_VERSION_MINOR) +
                                       "." + std::to_string(BELAY_VERSION_PATCH));
  CHECK(all["belay"]["standard"] >= 202002);
  CHECK(!all["belay"]["compiler"].get<std::string>().empty());
  CHECK((all["belay"]["checks"] >= 0 && all["belay"]["checks"] <= 2));
  utsname names{};
  REQUIRE(::uname(&names) == 0);
  CHECK(all["system"]["kernel"] == names.release);
  CHECK(all["system"]["architecture"] == names.machine);
  CHECK(all["cores"]["online"] == ::sysconf(_SC_NPROCESSORS_ONLN));
  CHECK(all["memory"]["total"] == number_in("/proc/meminfo", "MemTotal:", 1024));
  CHECK(all["memory"]["available"] <= all["memory"]["total"]);
  CHECK(all["memory"]["reservable"] <= all["memory"]["total"]);
  CHECK(all["memory"]["page"] == ::sysconf(_SC_PAGESIZE));
  CHECK(all["huge_pages"]["size"] == number_in("/proc/meminfo", "Hugepagesize:", 1024));
  CHECK(all["huge_pages"]["reserved"] == number_in("/proc/meminfo", "HugePages_Total:"));
  struct statvfs shared {};
  if (::statvfs("/dev/shm", &shared) == 0) {
    CHECK(all["dev_shm"]["total"] == shared.f_blocks * shared.f_frsize);
    CHECK(all["dev_shm"]["free"] <= all["dev_shm"]["total"]);
  }
  CHECK(all["cross_memory_attach"]["ptrace_scope"] == number_in("/proc/sys/kernel/yama/ptrace_scope"));
  const std::string cache = "/sys/devices/system/cpu/cpu0/cache/index0/";
  if (belay::kernel_file(cache + "type") == "Data\n") {
    CHECK(all["caches"]["l1_data"]["bytes"] == number_in(cache + "size", "", 1024));
    CHECK(all["caches"]["l1_data"]["line"] == number_in(cache + "coherency_line_size"));
    CHECK(all["caches"]["l1_data"]["shared_by"] >= 1);
  }
  const outcome readable = run(program);
  CHECK(readable.code == 0);
  for (const auto& [name, inside] : all.items())
    CHECK((inside.empty() || has(readable, "\n" + name + " ") || name == "belay"));
}

TEST_CASE("limits and cores are those of the process that asks") {
  const json limited = facts("ulimit -n 77 && ulimit -S -n 66 && ulimit -l 64 &&");
  CHECK(limited["limits"]["open_files"] == 66);
  CHECK(limited["limits"]["open_files_hard"] == 77);
  CHECK(limited["limits"]["locked_memory"] == 65536);
  cpu_set_t before, one;
  REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
  CHECK(facts()["cores"]["allowed"] == CPU_COUNT(&before));
  CPU_ZERO(&one);
  int core = 0;
  while (!CPU_ISSET(core, &before)) ++core;
  CPU_SET(core, &one);
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(facts()["cores"]["allowed"] == 1);
  CHECK(::sched_setaffinity(0, sizeof before, &before) == 0);
}

TEST_CASE("a backend is usable, or it is said why not") {
  const json backends = facts()["backends"];
  for (const char* const name : {"threads", "processes", "mpi", "io_uring", "cuda", "nccl"}) {
    const json one = backends[name];
    CAPTURE(name);
    CHECK(one["compiled"].is_boolean());
    CHECK(one["usable"] == one["why_not"].is_null());
  }
  if (backends["cuda"]["usable"] == false) CHECK(backends["nccl"]["usable"] == false);
  CHECK(backends["threads"]["usable"] == true);
  CHECK(backends["processes"]["usable"] == true);
  alignas(8) std::array<unsigned char, 120> parameters{};
  const long ring = ::syscall(SYS_io_uring_setup, 1, parameters.data());
  CHECK(backends["io_uring"]["usable"] == (ring >= 0));
  if (ring >= 0) ::close(static_cast<int>(ring));

  // A shared segment is a file to the kernel. What is not usable is no failure of the program.
  const json refused = facts("ulimit -f 0 &&")["backends"]["processes"];
  CHECK(refused["compiled"] == true);
  CHECK(refused["usable"] == false);
  CHECK(refused["why_not"].get<std::string>().find("RLIMIT_FSIZE") != std::string::npos);
  CHECK(has(run("ulimit -f 0 && " + program), "not usable: "));
  CHECK(facts("PATH=/nowhere")["backends"]["mpi"]["usable"] == false);
}

TEST_CASE("cross-memory attach is what this test is allowed too") {
  int end[2];
  REQUIRE(::pipe2(end, O_CLOEXEC) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  char byte = 1;
  if (child == 0) {
    ::close(end[1]);
    ::_exit(::read(end[0], &byte, 1) == 0 ? 0 : 1);
  }
  char seen = 0;
  const iovec here{&seen, 1}, there{&byte, 1};
  const bool allowed = ::process_vm_readv(child, &here, 1, &there, 1, 0) == 1;
  ::close(end[1]);
  ::close(end[0]);
  ::waitpid(child, nullptr, 0);
  const json told = facts()["cross_memory_attach"];
  CHECK(told["of_child"] == allowed);
  CHECK(told["why_not"].is_null() == allowed);
}

TEST_CASE("what launchers say is shown, but for secrets, and as text") {
  const json slurm =
      facts("env -i PATH=\"$PATH\" SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_JWT=hidden MASTER_PORT=5 OTHER=1");
  CHECK(slurm["launcher"]["found"] == "slurm: rank 1 of 4");
  CHECK(slurm["launcher"]["problem"].is_null());
  CHECK(slurm["environment"] ==
        json{{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}, {"SLURM_JWT", "(not shown)"}, {"MASTER_PORT", "5"}});
  const std::string two = "env -i RANK=0 WORLD_SIZE=2 PMI_RANK=0 PMI_SIZE=3";
  const json disagree = facts(two);
  CHECK(disagree["launcher"]["found"].is_null());
  CHECK(disagree["launcher"]["problem"].get<std::string>().find("two launchers disagree") != std::string::npos);
  CHECK(has(run(two + " " + program), "two launchers disagree"));
  const std::string hostile = "env -i OMPI_X=\"$(printf 'a\"\\n\\033[31m\\\\')\"";
  CHECK(facts(hostile)["environment"]["OMPI_X"] == "a\"\n\x1b[31m\\");
  const outcome shown = run(hostile + " " + program);
  CHECK(has(shown, "a\"\\n\\x1b[31m"));
  CHECK(!has(shown, "\x1b"));
}

TEST_CASE("a command line that makes no sense is refused") {
  for (const char* const flag : {"--jsno", "-j", "file", "--json=1", "''"}) {
    const outcome told = run(program + " --json " + flag);
    CAPTURE(flag);
    CHECK(told.code == 2);
    CHECK(has(told, "no such flag; see --help"));
  }
  CHECK(has(run(program + " --jsno"), "belay-info: --jsno: "));
  CHECK(has(run(program + " --help"), "belay-info [--json]\n"));
  const outcome full = run("(" + program + " --json > /dev/full)");
  CHECK(full.code == 1);
  CHECK(has(full, "belay-info: the output cannot be written"));
  CHECK(run(program + " --help").code == 0);
  CHECK(run(program + " --json >/dev/full").code == 1);
}

TEST_CASE("the least limit of a control group and those above it counts") {
  const scratch folder;
  const std::string root = folder / "cgroup";
  const belay_info::control_groups unified{"0::/job/rank\n", root};
  CHECK(belay_info::memory_limit(unified) == std::nullopt);
  CHECK(belay_info::core_limit(unified) == std::nullopt);
  write(root + "/job/rank/memory.max", "max\n");
  write(root + "/job/memory.max", "1048576\n");
  write(root + "/memory.max", "2097152\n");
  CHECK(belay_info::memory_limit(unified) == 1048576);
  write(root + "/job/rank/cpu.max", "max 100000\n");
  write(root + "/job/cpu.max", "150000 100000\n");
  CHECK(belay_info::core_limit(unified) == 1500);

  const belay_info::control_groups first{"5:cpu,cpuacct:/box\n4:memory:/box\n0::/\n", folder / "v1"};
  write(folder / "v1/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write(folder / "v1/cpu/cpu.cfs_quota_us", "-1\n");
  write(folder / "v1/cpu/cpu.cfs_period_us", "100000\n");
  CHECK(belay_info::memory_limit(first) == std::nullopt);
  CHECK(belay_info::core_limit(first) == std::nullopt);
  write(folder / "v1/memory/box/memory.limit_in_bytes", "4096\n");
  write(folder / "v1/cpu/box/cpu.cfs_quota_us", "50000\n");
  write(folder / "v1/cpu/box/cpu.cfs_period_us", "100000\n");
  CHECK(belay_info::memory_limit(first) == 4096);
  CHECK(belay_info::core_limit(first) == 500);
}
