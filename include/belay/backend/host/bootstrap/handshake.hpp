// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Processes that have connected to the coordinator and have not yet proved which rank they are.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "belay/backend/host/bootstrap/bootstrap_socket.hpp"
#include "belay/backend/host/bootstrap/messages.hpp"
#include "belay/backend/host/bootstrap/rank_record.hpp"
#include "belay/backend/host/failure/watched_process.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Accepts a process that has the token, is of this user, is the process that its hello names, and whose rank is free.
/// Each connection gets a nonce that its hello must repeat, so that a recorded hello is of no use.
class handshake {
 public:
  /// For so long a connection that waits for a free descriptor is tried again: other threads of this process use
  /// descriptors too.
  static constexpr time_point::duration shortage_limit = std::chrono::seconds(1);

  struct joined_process {
    int rank = 0;
    connection socket;
    watched_process process;
  };

  /// A connection without a hello is closed after `hello_limit`.
  handshake(bootstrap_socket& socket, time_point::duration hello_limit, where at)
      : listener_(&socket), hello_limit_(hello_limit), at_(at) {}

  /// The listening socket, or -1: closed, or no descriptor is free.
  [[nodiscard]] int listener() const noexcept {
    return std::chrono::steady_clock::now() < pause_ ? -1 : listener_->listener();
  }
  [[nodiscard]] std::size_t pending() const noexcept { return pending_.size(); }
  [[nodiscard]] int fd(std::size_t which) const noexcept { return pending_[which].socket.fd(); }

  /// The next time at which something is to be done without an event.
  [[nodiscard]] time_point next(time_point until) const noexcept;

  /// Accepts a connection and sends a greeting, unless another user connected. Throws `file_error` where for
  /// `shortage_limit` no descriptor was free.
  void accept(std::size_t ranks);

  /// Reads the hello of a pending connection: a rank's process; or nothing, where the hello was refused in words.
  [[nodiscard]] std::optional<joined_process> read_hello(std::size_t which, const std::vector<rank_record>& records);

  /// Closes connections that waited too long, and all once the listening socket is closed.
  void drop_expired();

 private:
  struct pending_connection {
    connection socket;
    pid_t pid = 0;
    std::uint64_t nonce = 0;
    time_point until;
  };
  static constexpr std::size_t most_beyond = 64;  // pending connections beyond one for each rank

  [[nodiscard]] std::string why_not(const pending_connection& from, const message& hello,
                                    const std::vector<rank_record>& records) const;

  bootstrap_socket* listener_;
  time_point::duration hello_limit_;
  where at_;
  std::vector<pending_connection> pending_;
  time_point pause_;
  std::optional<time_point> short_since_;  // of descriptors
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/bootstrap/handshake.ipp"  // IWYU pragma: export
#endif
