// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Reading /proc/meminfo, the control groups and /proc/self/statm.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <charconv>
#include <cstddef>
#include <system_error>
#include <utility>

#include "belay/core/bounds.hpp"
#include "belay/core/unique_fd.hpp"
#include "belay/device/available_memory.hpp"

namespace belay::inline BELAY_ABI {

[[gnu::cold]] BELAY_DECL std::string kernel_file(const std::string& path) {
  const unique_fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  if (!file) return text;
  char part[4096];
  while (text.size() < (std::size_t{64} << 10)) {
    const ssize_t got = ::read(file.get(), part, sizeof part);
    if (got <= 0) break;
    text.append(part, static_cast<std::size_t>(got));
  }
  return text;
}

[[gnu::cold]] BELAY_DECL std::optional<std::uint64_t> number_after(std::string_view text,
                                                                   std::string_view key) noexcept {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = lesser_of(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.substr(0, key.size()) != key) continue;
    line.remove_prefix(key.size());
    line.remove_prefix(lesser_of(line.find_first_not_of(" \t"), line.size()));
    std::uint64_t value = 0;
    if (std::from_chars(line.data(), line.data() + line.size(), value).ec == std::errc{}) return value;
  }
  return std::nullopt;
}

// Bytes in the lists of file pages that have to be written before they can be dropped. Locked pages are in neither
// list.
[[gnu::cold]] BELAY_DECL std::uint64_t unwritten_bytes(std::string_view text, std::string_view dirty,
                                                       std::string_view writeback) noexcept {
  return number_after(text, dirty).value_or(0) + number_after(text, writeback).value_or(0);
}

[[gnu::cold]] BELAY_DECL std::uint64_t left_on_machine(const std::string& meminfo) {
  const auto available = number_after(meminfo, "MemAvailable:");
  if (!available) return largest_value<std::uint64_t>;
  return (*available - lesser_of(*available, unwritten_bytes(meminfo, "Dirty:", "Writeback:"))) * 1024;
}

[[gnu::cold]] BELAY_DECL std::uint64_t left_in_control_groups(const std::string& groups, const std::string& root) {
  std::uint64_t left = largest_value<std::uint64_t>;
  struct names {
    const char *limit, *usage, *active, *inactive, *dirty, *writeback;
  };
  constexpr names v2 = {"/memory.max",    "/memory.current", "active_file ",
                        "inactive_file ", "file_dirty ",     "file_writeback "};
  constexpr names v1 = {"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_active_file ",
                        "total_inactive_file ",   "total_dirty ",           "total_writeback "};
  const auto look = [&](const std::string& folder, const names& of) {
    const auto most = number_after(kernel_file(folder + of.limit), "");  // "max" is no number: no limit
    const auto used = number_after(kernel_file(folder + of.usage), "");
    if (!most || !used) return;
    const std::string stat = kernel_file(folder + "/memory.stat");
    const std::uint64_t files = number_after(stat, of.active).value_or(0) + number_after(stat, of.inactive).value_or(0);
    const std::uint64_t droppable = files - lesser_of(files, unwritten_bytes(stat, of.dirty, of.writeback));
    const std::uint64_t kept = *used - lesser_of(*used, droppable);
    left = lesser_of(left, *most - lesser_of(*most, kept));
  };
  for (std::size_t begin = 0; begin < groups.size();) {
    const std::size_t end = lesser_of(groups.find('\n', begin), groups.size());
    const std::string line = groups.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool unified = controllers == ",,";
    if (!unified && controllers.find(",memory,") == std::string::npos) continue;
    std::string path = line.substr(second + 1);
    while (true) {
      if (path == "/") path.clear();
      if (unified)
        look(root + path, v2);
      else
        look(root + "/memory" + path, v1);
      if (path.empty()) break;
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  }
  return left;
}

[[gnu::cold]] BELAY_DECL std::size_t left_in_address_space() {
  struct rlimit limit = {};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return largest_value<std::size_t>;
  const auto pages = number_after(kernel_file("/proc/self/statm"), "").value_or(0);
  const std::uint64_t mapped = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return static_cast<std::size_t>(limit.rlim_cur - lesser_of<std::uint64_t>(limit.rlim_cur, mapped));
}

[[gnu::cold]] BELAY_DECL std::size_t available_memory() {
  constexpr std::uint64_t kept_free = std::uint64_t{64} << 20;
  const std::uint64_t free =
      lesser_of({left_on_machine(), left_in_control_groups(), std::uint64_t{left_in_address_space()}});
  return static_cast<std::size_t>(free - lesser_of(free, kept_free));
}

// The second number of /proc/self/statm, in pages.
[[gnu::cold]] BELAY_DECL std::size_t resident_memory() noexcept {
  const unique_fd file{::open("/proc/self/statm", O_RDONLY | O_CLOEXEC)};
  char text[128];
  const ssize_t bytes = file ? ::read(file.get(), text, sizeof text) : 0;
  if (bytes <= 0) return 0;
  const char* const end = text + bytes;
  std::size_t mapped = 0, resident = 0;
  const char* const after_mapped = std::from_chars(text, end, mapped).ptr;
  if (after_mapped == end) return 0;
  std::from_chars(after_mapped + 1, end, resident);
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

BELAY_DECL std::string device_usage_text(std::span<const device_usage> ranks) {
  std::string out = "measured beside the plan, bytes of each rank's device\n";
  constexpr std::pair<const char*, std::uint64_t device_usage::*> rows[] = {
      {"context and others", &device_usage::before},
      {"communication", &device_usage::communication},
      {"  planned for it", &device_usage::planned},
      {"products' library", &device_usage::kit},
      {"of", &device_usage::total},
  };
  for (const auto& [purpose, bytes] : rows) {
    std::uint64_t most = 0;
    for (const device_usage& each : ranks) most = greater_of(most, each.*bytes);
    if (bytes == &device_usage::planned && most == 0) continue;
    std::string line = "  ";
    line += purpose;
    line.resize(22, ' ');
    for (const device_usage& each : ranks) (line += ' ') += std::to_string(each.*bytes);
    (out += line) += '\n';
  }
  return out;
}

}  // namespace belay::inline BELAY_ABI
