// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What control groups allow this process, of version 2 and 1: the least of its group and of all above it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "belay/core/function_ref.hpp"
#include "belay/device/available_memory.hpp"

namespace belay_info {

enum class group_version { v1, v2 };

/// Where the groups of this process are told, and where their files lie. Others are for tests.
struct control_groups {
  std::string groups = belay::kernel_file("/proc/self/cgroup");
  std::string root = "/sys/fs/cgroup";
};

/// The folders of this process's groups that have `controller`, or may, from the innermost on.
inline void for_each_control_group(const control_groups& of, const std::string& controller,
                                   belay::function_ref<void(group_version version, const std::string& folder)> visit) {
  const std::string& groups = of.groups;
  for (std::size_t begin = 0; begin < groups.size();) {
    const std::size_t end = std::min(groups.find('\n', begin), groups.size());
    const std::string line = groups.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool unified = controllers == ",,";
    if (!unified && controllers.find("," + controller + ",") == std::string::npos) continue;
    std::string path = line.substr(second + 1);
    while (true) {
      if (path == "/") path.clear();
      if (unified)
        visit(group_version::v2, of.root + path);
      else
        visit(group_version::v1, of.root + "/" + controller + path);
      if (path.empty()) break;
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  }
}

/// Version 1 says a number near 2^63 where there is no limit.
inline constexpr std::uint64_t no_memory_limit = std::uint64_t{1} << 62;

/// Bytes; nothing where no group has a limit.
[[nodiscard]] inline std::optional<std::uint64_t> memory_limit(const control_groups& of = {}) {
  std::optional<std::uint64_t> out;
  for_each_control_group(of, "memory", [&](group_version version, const std::string& folder) {
    const char* const file = version == group_version::v2 ? "/memory.max" : "/memory.limit_in_bytes";
    const auto here = belay::number_after(belay::kernel_file(folder + file), "");
    if (here && *here < no_memory_limit) out = std::min(out.value_or(*here), *here);
  });
  return out;
}

/// Cores' worth of time a second, in thousandths; nothing where no group has a limit.
[[nodiscard]] inline std::optional<std::uint64_t> core_limit(const control_groups& of = {}) {
  std::optional<std::uint64_t> out;
  for_each_control_group(of, "cpu", [&](group_version version, const std::string& folder) {
    std::optional<std::uint64_t> time, period;
    if (version == group_version::v2) {
      const std::string both = belay::kernel_file(folder + "/cpu.max");  // "max 100000": no limit
      time = belay::number_after(both, "");
      period = belay::number_after(both.substr(std::min(both.find(' '), both.size())), "");
    } else {
      time = belay::number_after(belay::kernel_file(folder + "/cpu.cfs_quota_us"), "");  // "-1": no limit
      period = belay::number_after(belay::kernel_file(folder + "/cpu.cfs_period_us"), "");
    }
    if (time && period && *period > 0) out = std::min(out.value_or(*time * 1000 / *period), *time * 1000 / *period);
  });
  return out;
}

}  // namespace belay_info
