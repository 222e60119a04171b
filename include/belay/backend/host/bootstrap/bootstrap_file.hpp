// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How ranks that a foreign launcher started find the coordinator of their world. Rank 0 writes a file; its name follows
// from what the launcher told every rank, and no other user can enter its directory. Rank 0 removes the file when all
// have joined. A file that a killed process left is ignored, and removed by the next start.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>

#include "belay/backend/host/bootstrap/messages.hpp"
#include "belay/backend/host/bootstrap/private_directory.hpp"
#include "belay/comm/launcher.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

class bootstrap_socket;

/// Names the socket of a job. Removed by its destructor, in the process that wrote it.
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

  /// By the other ranks; waits for the file. Throws `comm_error` (timeout); `file_error` at once where something else
  /// is in the place of the file or of its directory.
  [[nodiscard]] static content find(const launcher_environment& job, time_point until, where at);

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
#include "belay/backend/host/bootstrap/bootstrap_file.ipp"  // IWYU pragma: export
#endif
