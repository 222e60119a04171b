// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The command line of belay-run. What comes after the program's name is the program's.
#pragma once

#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>

#include "belay/core/error.hpp"
#include "belay/core/finite.hpp"

namespace belay_run {

struct options {
  int ranks = 0;
  double timeout = 0;              // 0: as the environment says
  double stall = 30;               // seconds a rank may be stopped
  double grace = 5;                // seconds the others have after the first failure, and again after SIGTERM
  char* const* program = nullptr;  // its name and arguments, null at the end
  bool help = false;
};

inline constexpr char help_text[] =
    "belay-run -n N [--timeout s] [--stall s] [--grace s] program [arguments]\n"
    "\n"
    "Starts N processes of a program, each a rank of one world, on this machine.\n"
    "\n"
    "  -n, --ranks N   how many\n"
    "  --timeout s     seconds a rank waits for the others (BELAY_TIMEOUT of the ranks; default 600)\n"
    "  --stall s       seconds a rank may be stopped before that is an error (default 30)\n"
    "  --grace s       after the first failure: seconds until SIGTERM, then until SIGKILL (default 5)\n"
    "\n"
    "Each line that a rank prints comes with [rank] before it. Rank 0 reads our input unless that is a terminal;\n"
    "the others have none. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on; Ctrl-Z and fg stop all and let all go "
    "on.\n"
    "The exit code is that of the rank that caused the others' failure, else of the first that failed, or 128 + its\n"
    "signal; 75: the ranks were stopped by SIGTERM and have saved their state; 2: the command line makes no sense;\n"
    "126, 127: no such program.\n";

[[nodiscard]] inline double seconds(const std::string& flag, const char* text) {
  char* end = nullptr;
  const double value = text == nullptr ? 0 : std::strtod(text, &end);
  if (text == nullptr || end == text || *end != '\0' || !belay::is_finite(value) || value <= 0)
    throw belay::input_error(flag + " " + (text == nullptr ? "" : text) + ": expected seconds, more than 0");
  return value;
}

[[nodiscard]] inline int ranks(const char* text) {
  char* end = nullptr;
  const long value = text == nullptr ? 0 : std::strtol(text, &end, 10);
  if (text == nullptr || end == text || *end != '\0' || value < 1 || value > 4096)
    throw belay::input_error(std::string("-n ") + (text == nullptr ? "" : text) + ": expected ranks, from 1 to 4096");
  return static_cast<int>(value);
}

/// Throws input_error.
[[nodiscard]] inline options parse(char* const* arguments) {
  options out;
  char* const* next = arguments + 1;
  for (; *next != nullptr && (*next)[0] == '-'; ++next) {
    std::string flag = *next;
    if (flag == "--") {
      ++next;
      break;
    }
    if (flag == "-h" || flag == "--help") {
      out.help = true;
      return out;
    }
    // "-n4", "--grace=2" and "--grace 2" are the same.
    const char* value = nullptr;
    const std::size_t equals = flag.find('=');
    if (flag.substr(0, 2) == "-n" && flag.size() > 2) {
      value = *next + 2;
      flag = "-n";
    } else if (equals != std::string::npos) {
      value = *next + equals + 1;
      flag.resize(equals);
    } else if (next[1] != nullptr) {
      value = *++next;
    }
    if (flag == "-n" || flag == "--ranks")
      out.ranks = ranks(value);
    else if (flag == "--timeout")
      out.timeout = seconds(flag, value);
    else if (flag == "--stall")
      out.stall = seconds(flag, value);
    else if (flag == "--grace")
      out.grace = seconds(flag, value);
    else
      throw belay::input_error(flag + ": no such flag; see --help");
  }
  if (out.ranks == 0) throw belay::input_error("-n N says how many ranks; see --help");
  if (*next == nullptr) throw belay::input_error("which program? see --help");
  out.program = next;
  return out;
}

[[nodiscard]] inline std::chrono::steady_clock::duration duration_of(double value) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(std::min(value, 365.0 * 24 * 3600)));
}

}  // namespace belay_run
