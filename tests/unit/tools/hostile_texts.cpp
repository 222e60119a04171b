// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a rank throws reaches the terminal through the others' errors, belay-run and the flight's line: as text.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

#include "belay/backend/host.hpp"
#include "belay/comm.hpp"
#include "unit/backend/forked.hpp"

#ifdef BELAY_RUN

namespace {

constexpr const char* hostile =
    "no tensor \x1b]0;title\x07\xc2\x9b"
    "2J\nbelay-run: forged \xff";
constexpr const char* shown = "no tensor \\x1b]0;title\\x07\\u009b2J\\nbelay-run: forged \xef\xbf\xbd";

// What belay-run and two ranks print, of which the first throws.
std::string said(const scratch& folder, const char* flights) {
  const std::string file = folder.path() + "/said";
  const pid_t child = forked([&] {
    if (*flights != '\0') ::setenv("BELAY_FLIGHT_DIR", flights, 1);
    ::dup2(::open(file.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_APPEND | O_CLOEXEC, 0600), 2);
    ::dup2(2, 1);
    const std::string program = std::filesystem::read_symlink("/proc/self/exe");
    ::execl(BELAY_RUN, BELAY_RUN, "-n", "2", program.c_str(), "--no-skip", "--test-case=as a rank that throws",
            nullptr);
    return 98;
  });
  CHECK(reaped(child) == 5);
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

std::size_t times(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("what a rank throws is shown by the others, belay-run and the flight's line, and obeyed by no terminal") {
  const scratch folder;
  const std::string flights = folder.path() + "/flights";
  for (const char* const with : {"", flights.c_str()}) {
    const std::string text = said(folder, with);
    CAPTURE(text);
    for (const char c : text) CHECK((c == '\n' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f)));
    CHECK(text.find("\xc2\x9b") == std::string::npos);
    CHECK(text.find("\nbelay-run: forged") == std::string::npos);
    CHECK(times(text, shown) >= 2);  // the other rank's error, and the verdict
  }
}

// What the ranks above run.
TEST_CASE("as a rank that throws" * doctest::skip()) {
  try {
    belay::host::world::from_env().run([](auto& self) {
      self.world().barrier();
      if (self.number() == 0) throw std::runtime_error(hostile);
      self.world().barrier();
    });
  } catch (const belay::comm_error& error) {
    std::fprintf(stderr, "%s\n", error.what());
  } catch (const std::runtime_error&) {  // said by the others
  }
  std::fflush(nullptr);
  ::_exit(5);
}

#endif
