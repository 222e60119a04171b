// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Cores, caches, memory and limits, as the kernel tells them to this process.
#pragma once

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "belay/backend/host/memory/address_map.hpp"
#include "belay/core/error.hpp"
#include "belay/core/process.hpp"
#include "belay/core/unique_fd.hpp"
#include "belay/device/available_memory.hpp"
#include "tools/belay_info/control_groups.hpp"
#include "tools/belay_info/facts.hpp"

namespace belay_info {

/// The first line of a file of the kernel.
[[nodiscard]] inline std::optional<std::string> line_of(const std::string& path) {
  const std::string text = belay::kernel_file(path);
  if (text.empty()) return std::nullopt;
  return text.substr(0, text.find('\n'));
}

[[nodiscard]] inline std::optional<std::uint64_t> number_of(const std::string& path) {
  return belay::number_after(belay::kernel_file(path), "");
}

[[nodiscard]] inline section system_section() {
  utsname names{};
  const bool known = ::uname(&names) == 0;
  const auto text = [&](const char* from) { return known ? std::optional<std::string>(from) : std::nullopt; };
  return {"system", {text_fact("kernel", text(names.release)), text_fact("architecture", text(names.machine))}};
}

[[nodiscard]] inline section cores() {
  const auto number = [](int name) -> std::optional<std::uint64_t> {
    const long value = ::sysconf(name);
    return value < 1 ? std::nullopt : std::optional(static_cast<std::uint64_t>(value));
  };
  section out{"cores", {}};
  out.facts.push_back(count_fact("configured", number(_SC_NPROCESSORS_CONF)));
  out.facts.push_back(count_fact("online", number(_SC_NPROCESSORS_ONLN)));
  out.facts.push_back(count_fact("allowed", static_cast<std::uint64_t>(belay::core_set::allowed().count())));
  fact limit = count_fact("cgroup_limit", std::nullopt, "none");
  if (const auto thousandths = core_limit()) {
    const std::string rest = std::to_string(1000 + *thousandths % 1000).substr(1);
    limit.json = limit.text = std::to_string(*thousandths / 1000) + "." + rest;
  }
  out.facts.push_back(limit);
  return out;
}

/// Of the first core. `shared_by` counts the cores that share it.
[[nodiscard]] inline section caches() {
  section out{"caches", {}};
  for (int index = 0; index < 16; ++index) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index);
    const auto level = number_of(folder + "/level");
    const auto kilobytes = number_of(folder + "/size");  // "48K"
    if (!level || !kilobytes) continue;
    const std::string type = line_of(folder + "/type").value_or("");
    const std::string kind = type == "Data" ? "_data" : type == "Instruction" ? "_instruction" : "";
    std::uint64_t shared = 0;
    for (const char digit : belay::kernel_file(folder + "/shared_cpu_map")) {
      const unsigned value =
          digit >= 'a' ? static_cast<unsigned>(digit - 'a' + 10) : static_cast<unsigned>(digit - '0');
      if (value < 16) shared += static_cast<std::uint64_t>(std::popcount(value));
    }
    const auto line = number_of(folder + "/coherency_line_size");
    std::string text = bytes_text(*kilobytes * 1024);
    if (line) text += ", lines of " + std::to_string(*line);
    text += ", shared by " + std::to_string(shared) + (shared == 1 ? " core" : " cores");
    out.facts.push_back(
        {"l" + std::to_string(*level) + kind,
         json_object({{"bytes", json_of(*kilobytes * 1024)}, {"line", json_of(line)}, {"shared_by", json_of(shared)}}),
         text});
  }
  return out;
}

[[nodiscard]] inline section memory() {
  const std::string all = belay::kernel_file("/proc/meminfo");
  const auto bytes = [&](const char* key) -> std::optional<std::uint64_t> {
    const auto kilobytes = belay::number_after(all, key);
    return kilobytes ? std::optional(*kilobytes * 1024) : std::nullopt;
  };
  const auto finite = [](std::uint64_t value) { return value < no_memory_limit ? std::optional(value) : std::nullopt; };
  return {"memory",
          {bytes_fact("total", bytes("MemTotal:")), bytes_fact("available", bytes("MemAvailable:")),
           bytes_fact("reservable", belay::available_memory()), bytes_fact("cgroup_limit", memory_limit(), "none"),
           bytes_fact("cgroup_left", finite(belay::left_in_control_groups()), "no limit"),
           bytes_fact("page", static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)))}};
}

/// `text` has all that can be chosen, and what is chosen in brackets.
[[nodiscard]] inline std::optional<std::string> chosen_of(const std::string& text) {
  const std::size_t begin = text.find('[');
  const std::size_t end = text.find(']', begin == std::string::npos ? text.size() : begin);
  if (begin == std::string::npos || end == std::string::npos) return std::nullopt;
  return text.substr(begin + 1, end - begin - 1);
}

[[nodiscard]] inline section huge_pages() {
  const std::string folder = "/sys/kernel/mm/transparent_hugepage/";
  const std::string all = belay::kernel_file("/proc/meminfo");
  const auto kilobytes = belay::number_after(all, "Hugepagesize:");
  return {"huge_pages",
          {text_fact("transparent", chosen_of(belay::kernel_file(folder + "enabled"))),
           text_fact("transparent_shared", chosen_of(belay::kernel_file(folder + "shmem_enabled"))),
           bytes_fact("size", kilobytes ? std::optional(*kilobytes * 1024) : std::nullopt),
           count_fact("reserved", belay::number_after(all, "HugePages_Total:")),
           count_fact("free", belay::number_after(all, "HugePages_Free:"))}};
}

[[nodiscard]] inline section shared_memory() {
  struct statvfs facts {};
  const bool known = ::statvfs("/dev/shm", &facts) == 0;
  const auto bytes = [&](std::uint64_t blocks) {
    return known ? std::optional<std::uint64_t>(blocks * facts.f_frsize) : std::nullopt;
  };
  return {"dev_shm",
          {bytes_fact("total", bytes(facts.f_blocks), "no /dev/shm"),
           bytes_fact("free", bytes(facts.f_bavail), "no /dev/shm")}};
}

/// Reads a number that a child of ours has written into its own memory; what went wrong, or nothing.
[[nodiscard]] inline std::string why_no_child_is_read() {
  int ready[2], end[2];
  if (::pipe2(ready, O_CLOEXEC) != 0) return "pipe: " + belay::error_text(errno);
  belay::unique_fd ready_out(ready[0]), ready_in(ready[1]);
  if (::pipe2(end, O_CLOEXEC) != 0) return "pipe: " + belay::error_text(errno);
  belay::unique_fd end_out(end[0]), end_in(end[1]);
  volatile std::uint64_t number = 0;  // at the same address in the child
  constexpr std::uint64_t written = 0x62656c6179;
  const pid_t child = ::fork();
  if (child < 0) return "fork: " + belay::error_text(errno);
  char byte = 0;
  if (child == 0) {
    end_in.reset();  // the end of its other holder is then the end of the pipe
    number = written;
    const bool told = ::write(ready_in.get(), &byte, 1) == 1;
    ::_exit(told && ::read(end_out.get(), &byte, 1) == 0 ? 0 : 1);
  }
  ready_in.reset();
  std::string why_not;
  std::uint64_t seen = 0;
  const auto address = reinterpret_cast<std::uintptr_t>(&number);
  if (::read(ready_out.get(), &byte, 1) != 1)
    why_not = "the child has ended";
  else if (!belay::host::read_process(child, {0, address}, 0, &seen, sizeof seen))
    why_not = "process_vm_readv: " + belay::error_text(errno);
  else if (seen != written)
    why_not = "process_vm_readv reads something else";
  end_in.reset();
  static_cast<void>(::waitpid(child, nullptr, 0));
  return why_not;
}

[[nodiscard]] inline section cross_memory_attach() {
  const std::string problem = why_no_child_is_read();
  const std::optional<std::string> why_not = problem.empty() ? std::nullopt : std::optional(problem);
  const bool parent = belay::host::may_read_processes();
  return {"cross_memory_attach",
          {{"of_child", json_of(!why_not), why_not ? "not usable: " + *why_not : "usable"},
           {"why_not", json_of(why_not), why_not.value_or("-")},
           {"of_parent", json_of(parent), parent ? "usable" : "not usable"},
           count_fact("ptrace_scope", number_of("/proc/sys/kernel/yama/ptrace_scope"), "the kernel has none")}};
}

[[nodiscard]] inline section limits() {
  section out{"limits", {}};
  const auto add = [&](const std::string& name, int which, auto make) {
    rlimit found{};
    const bool known = ::getrlimit(static_cast<__rlimit_resource>(which), &found) == 0;
    const auto finite = [&](rlim_t value) {
      return !known || value == RLIM_INFINITY ? std::nullopt : std::optional<std::uint64_t>(value);
    };
    out.facts.push_back(make(name, finite(found.rlim_cur), "no limit"));
    out.facts.push_back(make(name + "_hard", finite(found.rlim_max), "no limit"));
  };
  add("open_files", RLIMIT_NOFILE, count_fact);
  add("locked_memory", RLIMIT_MEMLOCK, bytes_fact);
  return out;
}

}  // namespace belay_info
