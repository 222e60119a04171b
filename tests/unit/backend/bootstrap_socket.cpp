// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/backend/host/bootstrap/bootstrap_socket.hpp"

#include <doctest/doctest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "belay/core/error.hpp"
#include "unit/backend/forked.hpp"

using belay::host::accept_status;
using belay::host::bootstrap_socket;

namespace {

unsigned mode_of(const std::string& path) {
  struct stat status = {};
  REQUIRE(::lstat(path.c_str(), &status) == 0);
  return status.st_mode & 07777;
}

int connected(const std::string& path) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
  const int file = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (::connect(file, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0) return file;
  const int cause = errno;
  ::close(file);
  return -cause;
}

// A bootstrap socket whose owner was killed; its directory's name.
std::string left_by_a_kill(const std::string& base) {
  const signal_pipe open;
  const pid_t owner = forked([&] {
    const bootstrap_socket socket = bootstrap_socket::open_in(base);
    open.tell();
    while (true) ::pause();
    return 0;
  });
  open.wait();
  ::kill(owner, SIGKILL);
  CHECK(reaped(owner) == 1000 + SIGKILL);
  for (const auto& entry : std::filesystem::directory_iterator(base)) {
    const std::string name = entry.path().filename();
    if (name.find("-" + std::to_string(owner) + "-") != std::string::npos) return entry.path();
  }
  return {};
}

}  // namespace

TEST_CASE("a bootstrap socket is for its user only, has its own secret, and leaves nothing") {
  const scratch base;
  const int before = open_descriptors();
  std::string path;
  {
    bootstrap_socket socket = bootstrap_socket::open_in(base.path());
    const bootstrap_socket other = bootstrap_socket::open_in(base.path());
    path = socket.path();
    CHECK(mode_of(socket.directory()) == 0700);
    CHECK(mode_of(path) == 0600);
    CHECK_FALSE(belay::host::same(socket.secret(), other.secret()));
    CHECK_FALSE(belay::host::same(socket.secret(), belay::host::token{}));
    CHECK(socket.accept().what == accept_status::nobody);
    const int client = connected(path);
    REQUIRE(client >= 0);
    const belay::host::accepted accepted = socket.accept();
    CHECK(accepted.what == accept_status::ours);
    CHECK(accepted.from.pid == ::getpid());
    CHECK(accepted.from.user == ::geteuid());
    ::close(client);
    const bootstrap_socket moved = std::move(socket);
    CHECK(entries_of(base.path()) == 2);
  }
  CHECK(connected(path) == -ENOENT);
  CHECK(entries_of(base.path()) == 0);
  CHECK(open_descriptors() == before);
}

TEST_CASE("a forked child's copy removes nothing") {
  const scratch base;
  bootstrap_socket socket = bootstrap_socket::open_in(base.path());
  const pid_t child = forked([&] {
    socket.close();
    return 0;
  });
  CHECK(reaped(child) == 0);
  CHECK(std::filesystem::exists(socket.path()));
  socket.close();
  socket.close();
  CHECK(socket.closed());
  CHECK(entries_of(base.path()) == 0);
}

TEST_CASE("the next start sweeps what a killed process left, and nothing else") {
  const scratch base;
  const std::string left = left_by_a_kill(base.path());
  REQUIRE_FALSE(left.empty());
  CHECK(std::filesystem::exists(left + "/door"));
  const std::string name = std::filesystem::path(left).filename();
  const std::string user = "belay-" + std::to_string(::geteuid()) + "-";
  const std::string start = name.substr(name.find('-', user.size()) + 1);  // START-NAMESPACE-CHANCE

  const bootstrap_socket alive = bootstrap_socket::open_in(base.path());
  const auto make = [&](const std::string& directory) {
    std::filesystem::create_directory(base.path() + "/" + directory);
    std::filesystem::permissions(base.path() + "/" + directory, std::filesystem::perms::owner_all);
  };
  const std::string ours = user + std::to_string(::getpid()) + "-";
  make(ours + "1" + start.substr(start.find('-')));  // our number, but an earlier process: its start time is another
  make("belay-4294967294-1-1-1-0123456789abcdef");   // another user's name
  make(user + "notes");                              // not how we write
  make(user + "1-1-1-0123456789abcdef");             // another pid namespace
  std::string full = left;
  full.back() = full.back() == '0' ? '1' : '0';
  std::filesystem::create_directory(full);  // of the dead, but with something in it that is not ours
  std::filesystem::permissions(full, std::filesystem::perms::owner_all);
  std::ofstream(full + "/notes") << "x";
  std::string open_to_all = left;
  open_to_all[open_to_all.size() - 2] = open_to_all[open_to_all.size() - 2] == '0' ? '1' : '0';
  std::filesystem::create_directory(open_to_all);
  std::filesystem::permissions(open_to_all, std::filesystem::perms::all);
  std::string link = left;
  link[link.size() - 3] = link[link.size() - 3] == '0' ? '1' : '0';
  make("elsewhere");
  std::ofstream(base.path() + "/elsewhere/door") << "x";
  std::filesystem::create_directory_symlink(base.path() + "/elsewhere", link);

  CHECK(belay::host::remove_stale_files(base.path()) == 2);
  CHECK_FALSE(std::filesystem::exists(left));
  CHECK_FALSE(std::filesystem::exists(base.path() + "/" + ours + "1" + start.substr(start.find('-'))));
  CHECK(std::filesystem::exists(alive.path()));
  CHECK(std::filesystem::exists(full + "/notes"));
  CHECK(std::filesystem::exists(open_to_all));
  CHECK(std::filesystem::exists(base.path() + "/elsewhere/door"));
  CHECK(entries_of(base.path()) == 8);
  CHECK(belay::host::remove_stale_files(base.path()) == 0);
  CHECK(belay::host::remove_stale_files("/nowhere/at/all") == 0);
}

TEST_CASE("the sweep takes the bootstrap files of dead processes, and leaves those that it cannot judge") {
  const scratch base;
  const std::string files = base.path() + "/" + belay::host::user_prefix();
  std::filesystem::create_directory(files);
  std::filesystem::permissions(files, std::filesystem::perms::owner_all);
  const auto write = [&](const char* name, const belay::host::file_owner& owner) {
    const std::string path = files + "/" + name;
    std::ofstream(path) << "belay 2 " + owner.text() + " /nowhere/door " +
                               std::string(2 * sizeof(belay::host::token), '0') + "\n";
    ::chmod(path.c_str(), 0600);
    return path;
  };
  const auto self = belay::host::file_owner::this_process({});
  const std::string alive = write("job-1", self);
  const std::string dead = write("job-2", {self.pid, self.start_time + 1, self.pid_namespace});
  const std::string elsewhere = write("job-3", {self.pid, self.start_time + 1, self.pid_namespace + 1});
  CHECK(belay::host::remove_stale_files(base.path()) == 1);
  CHECK(std::filesystem::exists(alive));
  CHECK_FALSE(std::filesystem::exists(dead));
  CHECK(std::filesystem::exists(elsewhere));
}

TEST_CASE("a killed owner counts as gone before its parent has reaped it") {
  const scratch base;
  const signal_pipe open;
  const pid_t owner = forked([&] {
    const bootstrap_socket socket = bootstrap_socket::open_in(base.path());
    open.tell();
    while (true) ::pause();
    return 0;
  });
  open.wait();
  CHECK(belay::host::remove_stale_files(base.path()) == 0);
  ::kill(owner, SIGKILL);
  siginfo_t status = {};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(owner), &status, WEXITED | WNOWAIT) == 0);
  CHECK(belay::host::remove_stale_files(base.path()) == 1);
  CHECK(reaped(owner) == 1000 + SIGKILL);
}

TEST_CASE("the directory is XDG_RUNTIME_DIR where that is ours alone, else /tmp; the start sweeps it") {
  const pid_t child = forked([] {
    const auto base_with = [](const char* value) {
      ::setenv("XDG_RUNTIME_DIR", value, 1);
      return belay::host::base_directory();
    };
    const scratch mine;
    if (base_with(mine.path().c_str()) != mine.path()) return 1;
    if (bootstrap_socket::open().directory().find(mine.path()) != 0) return 2;
    const std::string left = left_by_a_kill(mine.path());
    const bootstrap_socket socket = bootstrap_socket::open();
    if (std::filesystem::exists(left) || left.empty()) return 3;
    if (base_with("relative") != "/tmp" || base_with("/nowhere") != "/tmp" || base_with("") != "/tmp") return 4;
    ::chmod(mine.path().c_str(), 0777);
    if (base_with(mine.path().c_str()) != "/tmp") return 5;
    if (base_with("/tmp/a/very/long/path/that/leaves/no/room/for/names") != "/tmp") return 6;
    return 0;
  });
  CHECK(reaped(child) == 0);
}

TEST_CASE("an XDG_RUNTIME_DIR that is not taken is named with the reason where what is taken instead fails") {
  const char* const outside = std::getenv("XDG_RUNTIME_DIR");
  const std::string before = outside == nullptr ? "" : outside;  // an empty one is as good as none
  const auto why = [&](const std::string& value) {
    ::setenv("XDG_RUNTIME_DIR", value.c_str(), 1);
    const std::string out = belay::host::base_set_aside();
    ::setenv("XDG_RUNTIME_DIR", before.c_str(), 1);
    return out;
  };
  const scratch mine;
  CHECK(why(mine.path()).empty());
  CHECK(why("").empty());
  CHECK(why("relative") == "; XDG_RUNTIME_DIR was set aside: relative is no path from /");
  CHECK(why("/nowhere") == "; XDG_RUNTIME_DIR was set aside: /nowhere cannot be looked at: No such file or directory");
  CHECK(why("/dev/null").find("/dev/null is no directory") != std::string::npos);
  const std::string deep = "/tmp/" + std::string(62, 'x');
  CHECK(why(deep).find(deep + " has 67 characters, at most 36 leave room") != std::string::npos);
  ::chmod(mine.path().c_str(), 0777);
  CHECK(why(mine.path()).find("can be written by other users") != std::string::npos);

  if (::geteuid() != 0) {
    MESSAGE("skipped: only root can have a /tmp of its own");
    return;
  }
  const pid_t child = forked([&] {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", "/tmp", "tmpfs", MS_RDONLY, nullptr) != 0)
      return 77;
    ::setenv("XDG_RUNTIME_DIR", deep.c_str(), 1);
    try {
      static_cast<void>(bootstrap_socket::open());
    } catch (const belay::file_error& error) {
      const std::string wanted = "mkdir: Read-only file system; XDG_RUNTIME_DIR was set aside: " + deep;
      return std::string(error.what()).find(wanted) != std::string::npos ? 0 : 1;
    }
    return 2;
  });
  const int code = reaped(child);
  if (code == 77)
    MESSAGE("skipped: this root may not mount");
  else
    CHECK(code == 0);
}

TEST_CASE("where no directory can be made, an error names it") {
  CHECK_THROWS_WITH_AS((void)bootstrap_socket::open_in("/nowhere"), doctest::Contains("/nowhere/belay-"),
                       belay::file_error);
  const std::string deep = "/tmp/" + std::string(80, 'x');
  CHECK_THROWS_WITH_AS((void)bootstrap_socket::open_in(deep), doctest::Contains("too long"), belay::file_error);
}

TEST_CASE("the connection of another user is closed, even through an open directory") {
  if (::geteuid() != 0) {
    MESSAGE("skipped: only root can become another user");
    return;
  }
  const scratch base;
  const bootstrap_socket socket = bootstrap_socket::open_in(base.path());
  const auto outcome_as_other = [&] {
    return reaped(forked([&] {
      if (::setgid(65534) != 0 || ::setuid(65534) != 0) return 1;
      const int file = connected(socket.path());
      return file == -EACCES ? 2 : file < 0 ? 3 : 4;
    }));
  };
  ::chmod(base.path().c_str(), 0755);
  CHECK(outcome_as_other() == 2);
  // The control: with the directory and the socket open to all another user connects, and is refused by its
  // credentials.
  ::chmod(socket.directory().c_str(), 0777);
  ::chmod(socket.path().c_str(), 0777);
  CHECK(outcome_as_other() == 4);
  CHECK(socket.accept().what == accept_status::stranger);
  CHECK(reaped(forked([&] { return connected(socket.path()) >= 0 ? 0 : 1; })) == 0);
  CHECK(socket.accept().what == accept_status::ours);
}
