// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How launched ranks find each other where something else is in the place of their file.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "belay/backend/host/bootstrap/bootstrap_socket.hpp"
#include "belay/backend/host/bootstrap/client.hpp"
#include "belay/backend/host/launched.hpp"
#include "unit/backend/forked.hpp"

using namespace belay::host;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

// What a rank of a job of two says when it runs; "" where it ran. Its timeout is longer than the child may live.
std::string said_by(int rank, const std::string& base) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = forked([&] {
    ::setenv("XDG_RUNTIME_DIR", base.c_str(), 1);
    ::setenv("RANK", std::to_string(rank).c_str(), 1);
    ::setenv("WORLD_SIZE", "2", 1);
    ::setenv("TORCHELASTIC_RUN_ID", "notes", 1);
    std::string said;
    try {
      launched_world({.timeout = 600s}).run([](auto&) {});
    } catch (const belay::file_error& error) {
      said = error.what();
    }
    static_cast<void>(!::write(ends[1], said.data(), said.size()));
    return 0;
  });
  ::close(ends[1]);
  char text[4096];
  const ssize_t got = ::read(ends[0], text, sizeof text);
  ::close(ends[0]);
  const int code = reaped(child);
  return code != 0 ? "ended with " + std::to_string(code)
                   : std::string(text, static_cast<std::size_t>(std::max<ssize_t>(0, got)));
}

// Where the job's bootstrap file is looked for.
struct places {
  scratch base;
  std::string folder = base.path() + "/belay-" + std::to_string(::geteuid());
  std::string file;

  places() {
    fs::create_directory(folder);
    ::chmod(folder.c_str(), 0700);
    // Its name, as a first rank that is killed leaves it.
    const pid_t child = forked([&] {
      ::setenv("XDG_RUNTIME_DIR", base.path().c_str(), 1);
      ::setenv("RANK", "0", 1);
      ::setenv("WORLD_SIZE", "2", 1);
      ::setenv("TORCHELASTIC_RUN_ID", "notes", 1);
      const bootstrap_socket socket = bootstrap_socket::open_in(base.path());
      const bootstrap_file left = bootstrap_file::write(belay::find_launcher(), socket, {});
      ::kill(::getpid(), SIGKILL);
      return 0;
    });
    REQUIRE(reaped(child) == 1000 + SIGKILL);
    for (const auto& each : fs::directory_iterator(folder)) file = each.path();
    REQUIRE(file.find("/job-") != std::string::npos);
  }
};

void make_socket(const std::string& path) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
  const int file = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  REQUIRE(::bind(file, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0);
  ::close(file);
}

}  // namespace

TEST_CASE("a bootstrap file is private, and gone when its directory's last job has joined") {
  const places here;
  struct stat status = {};
  REQUIRE(::lstat(here.file.c_str(), &status) == 0);
  CHECK((status.st_mode & 07777) == 0600);
  // The one that was left is of a process that is gone: the first rank replaces it, and both find each other.
  const pid_t other = forked([&] { return said_by(1, here.base.path()).empty() ? 0 : 1; });
  CHECK(said_by(0, here.base.path()) == "");
  CHECK(reaped(other) == 0);
  CHECK_FALSE(fs::exists(here.folder));
}

TEST_CASE("whatever else is in the place of a bootstrap file is an error at once, which names it") {
  struct intruder {
    const char* what;
    std::function<void(const std::string&)> put;
  };
  const intruder intruders[] = {
      {"is a fifo, expected a regular file", [](const std::string& path) { ::mkfifo(path.c_str(), 0600); }},
      {"is a directory, expected a regular file", [](const std::string& path) { ::mkdir(path.c_str(), 0700); }},
      {"is a socket, expected a regular file", make_socket},
      {"is a symbolic link, expected a regular file",
       [](const std::string& path) { fs::create_symlink("/etc/passwd", path); }},
      {"is a symbolic link, expected a regular file",
       [](const std::string& path) { fs::create_symlink("/nowhere", path); }},
      {"has mode 0644, expected 0600",
       [](const std::string& path) {
         std::ofstream(path) << "belay 1\n";
         ::chmod(path.c_str(), 0644);
       }},
  };
  for (const intruder& each : intruders) {
    CAPTURE(each.what);
    const places here;
    fs::remove(here.file);
    each.put(here.file);
    for (const int rank : {0, 1}) {
      const std::string said = said_by(rank, here.base.path());
      CAPTURE(said);
      CHECK(said.find(here.file) != std::string::npos);
      CHECK(said.find(each.what) != std::string::npos);
    }
    CHECK(fs::exists(fs::symlink_status(here.file)));
  }
  const places here;
  std::ofstream(here.file) << "something else\n";
  CHECK(said_by(1, here.base.path()).find("is no bootstrap file") != std::string::npos);
}

TEST_CASE("so is whatever else is in the place of its directory") {
  struct intruder {
    const char* what;
    std::function<void(const std::string&)> put;
  };
  const intruder intruders[] = {
      {"is a fifo, expected a directory", [](const std::string& path) { ::mkfifo(path.c_str(), 0700); }},
      {"is a file, expected a directory", [](const std::string& path) { std::ofstream(path) << "x"; }},
      {"is a symbolic link, expected a directory", [](const std::string& path) { fs::create_symlink("/tmp", path); }},
      {"has mode 0755, expected 0700",
       [](const std::string& path) {
         ::mkdir(path.c_str(), 0755);
         ::chmod(path.c_str(), 0755);
       }},
  };
  for (const intruder& each : intruders) {
    CAPTURE(each.what);
    const places here;
    fs::remove_all(here.folder);
    each.put(here.folder);
    for (const int rank : {0, 1}) {
      const std::string said = said_by(rank, here.base.path());
      CAPTURE(said);
      CHECK(said.find(here.folder + ": ") != std::string::npos);
      CHECK(said.find(each.what) != std::string::npos);
    }
  }
}

TEST_CASE("another user's bootstrap file and another user's directory are named with the user") {
  if (::geteuid() != 0) {
    MESSAGE("skipped: only root can make another user's files");
    return;
  }
  for (const bool whole_directory : {false, true}) {
    const places here;
    const std::string& path = whole_directory ? here.folder : here.file;
    REQUIRE(::chown(path.c_str(), 65534, 65534) == 0);
    for (const int rank : {0, 1}) {
      const std::string said = said_by(rank, here.base.path());
      CAPTURE(said);
      CHECK(said.find(path + ": ") != std::string::npos);
      CHECK(said.find("belongs to user 65534, expected 0") != std::string::npos);
    }
  }
}

TEST_CASE("where descriptors run out that is said, and no living job loses its file to the sweep") {
  const scratch base;
  ::setenv("XDG_RUNTIME_DIR", base.path().c_str(), 1);
  ::setenv("RANK", "0", 1);
  ::setenv("WORLD_SIZE", "2", 1);
  ::setenv("TORCHELASTIC_RUN_ID", "living", 1);
  const belay::launcher_environment mine = belay::find_launcher();
  {
    const bootstrap_socket socket = bootstrap_socket::open_in(base.path());
    const bootstrap_file file = bootstrap_file::write(mine, socket, {});
    int named = 0;
    for (int free_numbers = 0; free_numbers <= 6; ++free_numbers) {
      CAPTURE(free_numbers);
      const int code = reaped(forked([&] {
        ::setenv("TORCHELASTIC_RUN_ID", "other", 1);
        const int next = ::dup(0);
        ::close(next);
        rlimit limit = {};
        ::getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = static_cast<rlim_t>(next + free_numbers);
        ::setrlimit(RLIMIT_NOFILE, &limit);
        remove_stale_files(base.path());
        try {
          static_cast<void>(bootstrap_file::write(belay::find_launcher(), socket, {}));
        } catch (const belay::file_error& error) {
          return std::string(error.what()).find("RLIMIT_NOFILE of this process is ") != std::string::npos ? 1 : 2;
        }
        return 0;
      }));
      CHECK(code <= 1);
      named += code;
      CHECK(bootstrap_file::find(mine, in_seconds(1), {}).socket_path == socket.path());
    }
    CHECK(named > 0);
  }
  for (const char* name : {"XDG_RUNTIME_DIR", "RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"}) ::unsetenv(name);
}

TEST_CASE("a token's pipe into which nobody writes ends with the timeout") {
  const int code = reaped(forked([] {
    int silent[2];
    if (::pipe(silent) != 0) return 1;
    ::setenv("BELAY_RANK", "0", 1);
    ::setenv("BELAY_SIZE", "2", 1);
    ::setenv("BELAY_BOOTSTRAP_SOCKET", "/nowhere", 1);
    ::setenv("BELAY_BOOTSTRAP_SECRET_FD", std::to_string(silent[0]).c_str(), 1);
    try {
      launched_world({.timeout = 100ms}).run([](auto&) {});
    } catch (const belay::file_error& error) {
      return std::string(error.what()).find("BELAY_BOOTSTRAP_SECRET_FD: no token came before the timeout") !=
                     std::string::npos
                 ? 0
                 : 2;
    }
    return 3;
  }));
  CHECK(code == 0);
}

TEST_CASE("the variables of an older belay-run are told the new ones, of a single rank too") {
  for (const char* ranks : {"1", "2", ""}) {
    const int code = reaped(forked([ranks] {
      if (*ranks != '\0') ::setenv("BELAY_RANK", "0", 1), ::setenv("BELAY_SIZE", ranks, 1);
      ::setenv("BELAY_DOOR", "/nowhere", 1);
      ::setenv("BELAY_TOKEN_FD", "3", 1);
      try {
        launched_world({.timeout = 100ms}).run([](auto&) {});
      } catch (const belay::input_error& error) {
        const std::string told = error.what();
        return told.find("BELAY_DOOR is set, which BELAY_BOOTSTRAP_SOCKET and") != std::string::npos ? 0 : 2;
      }
      return 3;
    }));
    CHECK(code == 0);
  }
}

TEST_CASE("a path that no socket can have is an error with the limit") {
  const std::string path = "/tmp/" + std::string(103, 'x');
  CHECK_THROWS_WITH_AS((void)client::enter(path, token{}, 0, 2, in_seconds(20)),
                       doctest::Contains("a socket's path has 1 to 107 characters, this has 108"), belay::usage_error);
}
