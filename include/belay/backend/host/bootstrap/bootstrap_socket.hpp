// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where the ranks' processes connect to the coordinator of their world: a listening socket in a directory that no other
// user can enter, and a secret. It is removed as soon as all have joined; the next start removes the files that killed
// processes left.
//
// Ranks that a foreign launcher started find it by a file that rank 0 writes; its name follows from what the launcher
// told every rank. Rank 0 removes the file when all have joined. A file that a killed process left is ignored, and
// removed by the next start.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <sys/types.h>
#include <sys/un.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "belay/backend/host/bootstrap/messages.hpp"
#include "belay/backend/host/bootstrap/private_directory.hpp"
#include "belay/comm/launcher.hpp"
#include "belay/core/config.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/unique_fd.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Fills with random bytes of the kernel. Throws `file_error`.
BELAY_DECL void fill_random(void* bytes, std::size_t count, where at);

/// Why no socket can have this path, "a socket's path has 1 to 107 characters, this has 108"; empty: it can.
[[nodiscard]] BELAY_DECL std::string wrong_socket_path(const std::string& path);
/// The address of a path that a socket can have.
[[nodiscard]] BELAY_DECL sockaddr_un socket_address(const std::string& path) noexcept;

/// The user and the process at the other end of a connected local socket. For a socket that connected: of the
/// listening process.
struct peer {
  uid_t user = static_cast<uid_t>(-1);
  pid_t pid = 0;  // 0: in another pid namespace
};

[[nodiscard]] BELAY_DECL peer peer_of(int socket) noexcept;

/// The end of an accept: a process of this user has connected; one of another user, which was closed; none; or no
/// descriptor was free.
enum class accept_status : std::uint8_t { ours, stranger, nobody, no_descriptor };

struct accepted {
  accept_status what = accept_status::nobody;
  connection socket;
  peer from;
  int error = 0;  // no_descriptor: errno
};

/// A listening socket. Moved, never copied. Closed by the process that opened it, at the latest in the destructor; a
/// copy in a forked child removes nothing.
class bootstrap_socket {
 public:
  static constexpr char file_name[] = "door";

  /// Removes stale files, then opens a socket under `base_directory()`. Throws `file_error`.
  [[nodiscard]] static bootstrap_socket open(where at = where::current());
  /// Opens a socket under `base`, and removes nothing.
  [[nodiscard]] static bootstrap_socket open_in(const std::string& base, where at = where::current());

  bootstrap_socket(bootstrap_socket&& other) noexcept
      : owner_(other.owner_),
        secret_(other.secret_),
        directory_(std::exchange(other.directory_, {})),
        listener_(std::move(other.listener_)) {}
  bootstrap_socket& operator=(bootstrap_socket&&) = delete;
  ~bootstrap_socket() { close(); }

  [[nodiscard]] std::string path() const { return directory_ + "/" + file_name; }
  [[nodiscard]] const std::string& directory() const noexcept { return directory_; }
  [[nodiscard]] const token& secret() const noexcept { return secret_; }
  /// -1 once closed.
  [[nodiscard]] int listener() const noexcept { return listener_.get(); }
  [[nodiscard]] bool closed() const noexcept { return !listener_; }

  /// From now on no process can join; socket and directory are removed. A forked child closes its copy only.
  void close() noexcept;

  /// Accepts one connection; does not wait.
  [[nodiscard]] accepted accept() const noexcept;

 private:
  bootstrap_socket() noexcept = default;

  void listen(where at);

  pid_t owner_ = 0;
  token secret_ = {};
  std::string directory_;
  unique_fd listener_;
};

/// Removes the sockets and the bootstrap files under `base` whose process is gone; how many. Files of other users, of
/// other pid namespaces, and everything that is written otherwise stay.
BELAY_DECL int remove_stale_files(const std::string& base = base_directory()) noexcept;

/// The file that names the socket of a job to ranks of a foreign launcher. Removed by its destructor, in the process
/// that wrote it.
class bootstrap_file {
 public:
  struct content {
    file_owner owner;
    std::string socket_path;
    token secret = {};
  };

  static constexpr char prefix[] = "job-";
  static constexpr char unfinished[] = "unfinished-";

  /// By the first rank. Throws `file_error`.
  [[nodiscard]] static bootstrap_file write(const launcher_environment& job, const bootstrap_socket& socket, where at);

  /// By the other ranks; waits for the file, until a time by `clock`. Throws `comm_error` (timeout); `file_error` at
  /// once where something else is in the place of the file or of its directory.
  [[nodiscard]] static content find(const launcher_environment& job, time_point until, where at,
                                    const time_source* clock = nullptr);

  /// Nothing where there is no such file. Throws `file_error` where it is no bootstrap file.
  [[nodiscard]] static std::optional<content> read(const private_directory& folder, const std::string& name, where at);

  /// The directory of all bootstrap files of this user.
  [[nodiscard]] static std::string folder_path() { return base_directory() + "/" + user_prefix(); }

  bootstrap_file(bootstrap_file&& other) noexcept
      : owner_(other.owner_), name_(std::exchange(other.name_, {})), folder_(std::move(other.folder_)) {}
  bootstrap_file& operator=(bootstrap_file&&) = delete;
  /// The directory is removed with its last file.
  ~bootstrap_file();

 private:
  bootstrap_file(pid_t owner, std::string name, private_directory folder) noexcept
      : owner_(owner), name_(std::move(name)), folder_(std::move(folder)) {}

  pid_t owner_;
  std::string name_;
  private_directory folder_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/bootstrap/bootstrap_socket.ipp"  // IWYU pragma: export
#endif
