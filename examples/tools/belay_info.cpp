// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// belay-info: what this Belay is, and what of it this machine and this process's limits let run. What a report of a
// problem needs.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "belay/version.hpp"
#include "tools/belay_info/backends.hpp"
#include "tools/belay_info/facts.hpp"
#include "tools/belay_info/launcher.hpp"
#include "tools/belay_info/machine.hpp"

namespace belay_info {

namespace {

constexpr char help_text[] =
    "belay-info [--json]\n"
    "\n"
    "Tells what this Belay is built with, which backends this machine lets run and why not the others, and what this\n"
    "process has: cores, caches, memory, huge pages, shared memory, limits, and what launchers have left in its\n"
    "environment (but no values of variables whose names speak of tokens and keys).\n"
    "\n"
    "  --json   the same for programs: an object with an object for each section; null is not known, or no limit\n"
    "\n"
    "The exit code is 0; 1 where the output cannot be written; 2 where the command line makes no sense.\n";

section build() {
  const std::string version = std::to_string(BELAY_VERSION_MAJOR) + "." + std::to_string(BELAY_VERSION_MINOR) + "." +
                              std::to_string(BELAY_VERSION_PATCH);
#if defined(__clang__)
  const std::string compiler = "clang " __clang_version__;
#else
  const std::string compiler = "g++ " __VERSION__;
#endif
  return {"belay",
          {text_fact("version", version), count_fact("checks", static_cast<std::uint64_t>(BELAY_CHECKS)),
           text_fact("compiler", compiler), count_fact("standard", static_cast<std::uint64_t>(__cplusplus))}};
}

int run(int count, char** arguments) {
  const auto given = [&](int i, const char* flag) { return std::strcmp(arguments[i], flag) == 0; };
  bool json = false;
  for (int i = 1; i < count; ++i) {
    if (given(i, "-h") || given(i, "--help")) {
      std::fputs(help_text, stdout);
      return std::fflush(stdout) == 0 ? 0 : 1;
    }
    if (!given(i, "--json")) {
      std::fprintf(stderr, "belay-info: %s: no such flag; see --help\n", belay::printable(arguments[i]).c_str());
      return 2;
    }
    json = true;
  }
  // What forks comes before libraries of the machine are loaded.
  const section attach = cross_memory_attach();
  std::vector<section> all{build(),      system_section(), backends(), cores(),  caches(),   memory(),
                           huge_pages(), shared_memory(),  attach,     limits(), launcher(), environment()};
  const std::string out = json ? json_text(all) : readable_text(all);
  const bool written = std::fwrite(out.data(), 1, out.size(), stdout) == out.size() && std::fflush(stdout) == 0;
  if (!written) std::fputs("belay-info: the output cannot be written\n", stderr);
  return written ? 0 : 1;
}

}  // namespace

}  // namespace belay_info

int main(int argc, char** argv) try { return belay_info::run(argc, argv); } catch (const std::exception& problem) {
  std::fprintf(stderr, "belay-info: %s\n", belay::printable_what(problem).c_str());
  return 1;
}
