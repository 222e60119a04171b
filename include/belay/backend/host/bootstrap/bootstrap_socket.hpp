// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where the processes of a world find the one that holds their memory: a socket in a directory that no other user
// can enter, and a secret. It is gone as soon as all have joined; one that a killed process left is swept by the
// next start. Whose it is stands in the directory's name, so that there is no moment in which nobody knows.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/backend/host/bootstrap/messages.hpp"
#include "belay/backend/host/failure/watched_process.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hexadecimal.hpp"
#include "belay/core/unique_fd.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Fills with random bytes of the kernel.
template <class T>
void fill_random(T& bytes, where at) {
  auto* next = reinterpret_cast<unsigned char*>(&bytes);
  for (std::size_t left = sizeof bytes; left > 0;) {
    const ssize_t got = ::getrandom(next, left, 0);
    if (got < 0 && errno != EINTR) throw file_error("getrandom", 0, std::strerror(errno), at);
    if (got > 0) next += got, left -= static_cast<std::size_t>(got);
  }
}

/// The user at the other end of a connected local socket, and the process. For a socket got by connect() that is
/// who listens there.
struct peer {
  uid_t user = static_cast<uid_t>(-1);
  pid_t pid = 0;  // 0: in another pid namespace
};

[[nodiscard]] inline peer peer_of(int socket) noexcept {
  ucred told = {};
  socklen_t size = sizeof told;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &told, &size) != 0) return {};
  return {told.uid, told.pid};
}

/// Who knocked: somebody of this user; somebody else, who was shown out; nobody; or there was no descriptor left.
enum class accept_status : std::uint8_t { ours, stranger, nobody, no_room };

struct accepted {
  accept_status what = accept_status::nobody;
  connection line;
  peer who;
  int why = 0;  // no_room: errno
};

/// An open doorway. Moved, never copied. The process that opened it closes it, at the latest in its destructor;
/// a copy in a forked child does nothing.
class bootstrap_socket {
 public:
  /// Sweeps, then opens one under $XDG_RUNTIME_DIR, or under /tmp where that is not a directory of ours. Throws
  /// `file_error`.
  [[nodiscard]] static bootstrap_socket open(where at = where::current()) {
    const std::string base = base_directory();
    sweep(base);
    return open_in(base, at);
  }
  /// The same, where the caller says, without sweeping.
  [[nodiscard]] static bootstrap_socket open_in(const std::string& base, where at = where::current()) {
    bootstrap_socket door;
    door.owner_ = ::getpid();
    fill_random(door.secret_, at);
    const std::string begin = base + "/" + prefix() + std::to_string(door.owner_) + "-" +
                              std::to_string(start_time_of(door.owner_, at)) + "-" + std::to_string(pid_namespace()) +
                              "-";
    std::string directory;
    do {
      std::uint64_t chance = 0;
      fill_random(chance, at);
      directory = begin;
      append_hex(directory, chance, 16);
      if (directory.size() + sizeof(socket_name) + 1 > sizeof(sockaddr_un::sun_path))
        throw file_error(directory + "/" + socket_name, 0,
                         "too long: a socket's path has 107 characters at most, this would have " +
                             std::to_string(directory.size() + sizeof(socket_name)),
                         at);
      if (::mkdir(directory.c_str(), S_IRWXU) == 0) break;
      if (errno != EEXIST) throw file_error(directory, 0, "mkdir: " + error_text(errno), at);
    } while (true);
    door.directory_ = directory;
    door.listen(at);
    return door;
  }

  bootstrap_socket(bootstrap_socket&& other) noexcept
      : owner_(other.owner_),
        secret_(other.secret_),
        directory_(std::exchange(other.directory_, {})),
        listener_(std::move(other.listener_)) {}
  bootstrap_socket& operator=(bootstrap_socket&& other) noexcept {
    if (this != &other) {
      close();
      owner_ = other.owner_;
      secret_ = other.secret_;
      directory_ = std::exchange(other.directory_, {});
      listener_ = std::move(other.listener_);
    }
    return *this;
  }
  ~bootstrap_socket() { close(); }

  /// The socket's path.
  [[nodiscard]] std::string path() const { return directory_ + "/" + socket_name; }
  [[nodiscard]] const std::string& directory() const noexcept { return directory_; }
  [[nodiscard]] const token& secret() const noexcept { return secret_; }
  /// -1 once closed.
  [[nodiscard]] int listener() const noexcept { return listener_.get(); }
  [[nodiscard]] bool closed() const noexcept { return !listener_; }

  /// Nobody can join any more; socket and directory are gone. In a forked child only its copy of the socket.
  void close() noexcept {
    listener_.reset();
    if (directory_.empty() || ::getpid() != owner_) return;
    ::unlink(path().c_str());
    ::rmdir(directory_.c_str());
    directory_.clear();
  }

  /// Lets in one who connected; does not wait.
  [[nodiscard]] accepted answer() const noexcept {
    accepted who;
    unique_fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      who.what = is_shortage(errno) ? accept_status::no_room : accept_status::nobody;
      who.why = errno;
      return who;
    }
    who.who = peer_of(socket.get());
    who.what = who.who.user == ::geteuid() ? accept_status::ours : accept_status::stranger;
    if (who.what == accept_status::ours) who.line = connection(std::move(socket));
    return who;
  }

  /// Removes the doorways of this user whose process is gone; how many. Others', and those of processes that
  /// cannot be seen from here (another pid namespace), are left.
  static int sweep(const std::string& base = base_directory()) noexcept {
    const int folder = ::open(base.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR* const list = folder < 0 ? nullptr : ::fdopendir(folder);
    if (list == nullptr) {
      if (folder >= 0) ::close(folder);
      return 0;
    }
    int swept = 0;
    const std::string mine = prefix();
    while (const dirent* entry = ::readdir(list)) {
      const std::string_view name = entry->d_name;
      if (name.substr(0, mine.size()) != mine) continue;
      if (!abandoned(name.substr(mine.size()))) continue;
      swept += remove_if_ours(folder, entry->d_name);
    }
    ::closedir(list);
    return swept;
  }

  [[nodiscard]] static std::string base_directory() {
    const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
    struct stat status = {};
    const bool usable = runtime != nullptr && *runtime == '/' && std::strlen(runtime) <= longest_base &&
                        ::stat(runtime, &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() &&
                        (status.st_mode & (S_IWGRP | S_IWOTH)) == 0 && ::access(runtime, W_OK | X_OK) == 0;
    return usable ? runtime : "/tmp";
  }

 private:
  static constexpr char socket_name[] = "door";
  // A socket's path holds 107 characters; the numbers in ours take up to 71 of them.
  static constexpr std::size_t longest_base = 36;

  bootstrap_socket() noexcept = default;

  [[nodiscard]] static std::string prefix() { return "belay-" + std::to_string(::geteuid()) + "-"; }

  // Process numbers mean something only where they were given.
  [[nodiscard]] static std::uint64_t pid_namespace() noexcept {
    struct stat status = {};
    return ::stat("/proc/self/ns/pid", &status) == 0 ? static_cast<std::uint64_t>(status.st_ino) : 0;
  }

  // Of "PID-START-NAMESPACE-CHANCE", the rest of a name; what is written in no such way is not ours to judge.
  [[nodiscard]] static bool abandoned(std::string_view rest) noexcept {
    std::array<std::uint64_t, 3> numbers = {};
    for (std::uint64_t& number : numbers) {
      const auto [end, wrong] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
      if (wrong != std::errc{} || end == rest.data() + rest.size() || *end != '-') return false;
      rest.remove_prefix(static_cast<std::size_t>(end - rest.data()) + 1);
    }
    if (rest.size() != 16 || numbers[0] == 0 || numbers[0] > 0x7fffffff || numbers[2] != pid_namespace()) return false;
    return !still_runs(static_cast<pid_t>(numbers[0]), numbers[1]);
  }

  // Opened without following links and looked at once open, so that nothing else is put in its place meanwhile.
  [[nodiscard]] static int remove_if_ours(int base, const char* name) noexcept {
    const unique_fd folder(::openat(base, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat status = {};
    if (!folder || ::fstat(folder.get(), &status) != 0 || status.st_uid != ::geteuid()) return 0;
    if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) return 0;
    ::unlinkat(folder.get(), socket_name, 0);
    return ::unlinkat(base, name, AT_REMOVEDIR) == 0 ? 1 : 0;  // one that holds anything else stays
  }

  void listen(where at) {
    const auto refuse = [&](const char* call) {
      throw file_error(path(), 0, std::string(call) + ": " + error_text(errno), at);
    };
    listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!listener_) refuse("socket");
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    const std::string text = path();
    std::memcpy(name.sun_path, text.c_str(), text.size() + 1);
    // Before bind: the file is made with this mode, whatever the process' mask says beyond it.
    if (::fchmod(listener_.get(), S_IRUSR | S_IWUSR) != 0) refuse("fchmod");
    if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) refuse("bind");
    if (::listen(listener_.get(), SOMAXCONN) != 0) refuse("listen");
  }

  pid_t owner_ = 0;
  token secret_ = {};
  std::string directory_;
  unique_fd listener_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
