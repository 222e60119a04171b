// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The machine, as far as figures depend on it.
#pragma once

#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "collectives/result.hpp"
#include "nlohmann/json.hpp"

namespace bench {

/// The machine as /proc and uname know it, and the states the run found itself in.
[[nodiscard]] inline nlohmann::ordered_json machine_json(const std::vector<row>& rows, const std::string& mpi) {
  nlohmann::ordered_json out;
  std::ifstream processor("/proc/cpuinfo");
  for (std::string text; std::getline(processor, text);) {
    const std::size_t colon = text.find(": ");
    if (text.starts_with("model name") && colon != std::string::npos) {
      out["processor"] = text.substr(colon + 2);
      break;
    }
  }
  utsname system{};
  ::uname(&system);
  out["architecture"] = system.machine;
  out["kernel"] = system.release;
  out["cores"] = ::sysconf(_SC_NPROCESSORS_ONLN);
  out["l2_bytes"] = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
  out["l3_bytes"] = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
#if defined(__clang__)
  out["compiler"] = "clang " __clang_version__;
#else
  out["compiler"] = "g++ " __VERSION__;
#endif
  if (!mpi.empty()) out["mpi"] = mpi;
  std::map<std::string, std::pair<std::vector<double>, std::vector<double>>> by_state;
  for (const row& one : rows) {
    by_state[one.state].first.push_back(one.rtt_us);
    by_state[one.state].second.push_back(one.copy_scaling);
  }
  out["states"] = nlohmann::ordered_json::object();
  for (const auto& [state, values] : by_state) {
    out["states"][state] = {{"rtt_us", measured(percentile(values.first, 0.5))},
                            {"copy_scaling", measured(percentile(values.second, 0.5))}};
  }
  return out;
}

}  // namespace bench
