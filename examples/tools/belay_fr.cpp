// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// belay-fr FILE: what a flight file says. The verdict first, then each rank's last operation, then the last operations
// of all ranks side by side.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "tools/belay_fr/flight.hpp"
#include "tools/belay_fr/flight_json.hpp"
#include "tools/belay_fr/picture.hpp"

using namespace belay_fr;

int main(int argc, char** argv) {
  CLI::App app{"Says why a run of several ranks failed, from the flight file it left"};
  std::vector<std::string> files;
  int rank = -1;
  std::size_t count = 10;
  bool as_json = false;
  app.add_option("FILE", files, "belay-flight-JOB.json, from the folder BELAY_FLIGHT_DIR; several one after the other")
      ->required();
  app.add_option("--rank", rank, "only this rank's operations, with all that is known of each");
  app.add_option("--last", count, "so many operations of each rank")->capture_default_str();
  app.add_flag("--json", as_json, "for programs: the same as JSON");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    return app.exit(problem) == 0 ? 0 : 2;
  }
  const auto show = [&](const std::string& file) {
    const flight read = read_flight(file);
    if (rank < -1 || rank >= static_cast<int>(read.ranks.size())) {
      std::fprintf(stderr, "belay-fr: --rank %d: the file has ranks 0 to %zu\n", rank, read.ranks.size() - 1);
      return 2;
    }
    std::string out = files.size() > 1 && !as_json ? "== " + printable(file) + " ==\n" : "";
    if (as_json) {
      out += json_text(read, count, rank);
    } else {
      out += head_text(read) + "\n" + ranks_table(read);
      out += rank < 0 ? side_by_side(read, count).text() : rank_table(read, static_cast<std::size_t>(rank), count);
    }
    const bool written = std::fwrite(out.data(), 1, out.size(), stdout) == out.size() && std::fflush(stdout) == 0;
    return written ? 0 : 1;
  };
  int worst = 0;
  for (const std::string& file : files) {
    try {
      worst = std::max(worst, show(file));
    } catch (const std::exception& problem) {
      const std::string what = belay::printable_what(problem);
      const std::size_t prefix = what.starts_with("belay: ") ? std::string_view("belay: ").size() : 0;
      std::fprintf(stderr, "belay-fr: %s\n", what.c_str() + prefix);
      worst = std::max(worst, 1);
    }
  }
  return worst;
}
