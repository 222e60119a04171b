// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Messages between the coordinator of a world and its ranks' processes: frames of one fixed size over a local socket.
// Every field of a frame is checked before it is used.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/unique_fd.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// The deadline of a call.
using time_point = std::chrono::steady_clock::time_point;
/// For a call that does not wait.
inline constexpr time_point at_once{};

/// One ppoll, which ends at `until` at the latest: how many entries have something, 0 where none has, -1 with errno
/// (EINTR: a signal came). By another clock than the machine's it ends after a slice, which may be before `until`.
[[nodiscard]] BELAY_DECL int poll_until(pollfd* entries, std::size_t count, time_point until,
                                        const time_source* clock) noexcept;
/// Returns whether the file has `events`: once it has them, or at the deadline.
[[nodiscard]] BELAY_DECL bool wait_for_events(int file, short events, time_point until,
                                              const time_source* clock) noexcept;

/// The secret of a bootstrap socket: 256 bits.
using token = std::array<std::byte, 32>;

/// Compares in a time that does not depend on how many bytes are equal.
[[nodiscard]] BELAY_DECL bool same(const token& a, const token& b) noexcept;

enum class message_kind : std::uint16_t {
  greeting = 1,  // coordinator: {nonce}
  hello,         // client: rank, {size, nonce, start time}, token
  welcome,       // coordinator: {epoch, bytes}, the control block's segment
  refused,       // coordinator: {refusal, requested, available}, words
  keep,          // client: {bytes}, a segment
  kept,          // coordinator: {region, bytes}
  attach,        // client: {region}
  attached,      // coordinator: {region, bytes}, the segment
  drop,          // client: {region}
  dropped,       // coordinator: {region}
  goodbye,       // client: {outcome}, result or words
  farewell,      // coordinator
  shrink,        // client: {microseconds it waits}
  renewed,       // coordinator: new rank, {epoch, bytes}, members, the new control block's segment
};
inline constexpr std::uint16_t last_message_kind = static_cast<std::uint16_t>(message_kind::renewed);

/// One whole message. `ticket` is the sender's number of a request; the answer repeats it.
struct message {
  message_kind kind = message_kind::greeting;
  std::int32_t rank = -1;
  std::uint64_t ticket = 0;
  std::array<std::uint64_t, 3> numbers = {};
  token secret = {};
  std::string body;  // any bytes
};

/// Why a request was refused.
enum class refusal : std::uint64_t {
  words = 1,  // the body says it
  budget,     // numbers[1] and [2]: bytes requested, bytes available
  late,       // the client's deadline has passed; the body says what was missing
};

/// The answer to a refused request. `requested` and `available` are bytes of a budget.
[[nodiscard]] BELAY_DECL message refused(std::uint64_t ticket, refusal why, std::string words,
                                         std::uint64_t requested = 0, std::uint64_t available = 0);

/// A rank's last message: its body returned, with a result, or failed.
struct exit_message {
  enum class outcome : std::uint64_t { returned, failed };
  outcome how = outcome::returned;
  std::uint64_t kind = 0;  // of the failure; numbers that the two ends agree on
  std::string body;        // the result's bytes, or the failure in words
};

/// The result of waiting for a message.
enum class receipt : std::uint8_t {
  whole,    // a message
  nothing,  // none before the deadline
  closed,   // the other side is gone
  garbled,  // no message of this protocol; the connection is of no more use
};

struct received {
  receipt what = receipt::nothing;
  message said;
  unique_fd file;          // sent with the message
  const char* why = "";    // garbled: what was wrong
  bool lost_file = false;  // one was sent, but this process has no free descriptor for it
};

/// Why a message that shall bring a descriptor has none.
[[nodiscard]] BELAY_DECL std::string no_file_text(const received& got);

/// A message of which more frames are to come.
struct unfinished_message {
  message said;
  unique_fd file;
  bool lost_file = false;
  std::uint64_t left = 0;
};

/// One end of a connected SOCK_SEQPACKET socket. One thread sends and receives at a time.
class connection {
 public:
  static constexpr std::uint32_t magic = 0x59'4c'45'42;  // "BELY"
  static constexpr std::uint16_t version = 1;
  static constexpr std::uint64_t longest_body = std::uint64_t{256} << 20;
  static constexpr std::size_t part = 1024;  // bytes of a body in one frame; longer ones come in several

  /// On the wire. Same machine, so same byte order and layout.
  struct frame {
    std::uint32_t magic_word;
    std::uint16_t version_number;
    std::uint16_t kind;
    std::int32_t rank;
    std::uint32_t used;  // bytes of this frame's part
    std::uint64_t left;  // bytes of the body in the frames after this one
    std::uint64_t ticket;
    std::uint64_t numbers[3];
    std::byte secret[32];
    std::byte bytes[part];
  };
  static_assert(sizeof(frame) == 88 + part);

  connection() noexcept = default;
  /// Its deadlines are times by `clock`; null: the machine's.
  explicit connection(unique_fd socket, const time_source* clock = nullptr) noexcept
      : socket_(std::move(socket)), clock_(clock) {}

  [[nodiscard]] int fd() const noexcept { return socket_.get(); }
  [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(socket_); }
  void close() noexcept { socket_.reset(); }
  /// The other side reads the end; what it has sent can still be received.
  void stop_sending() noexcept;

  /// Longer bodies from the other side are refused.
  void limit_body(std::uint64_t bytes) noexcept { longest_ = bytes; }

  /// Sends all frames, and a file descriptor with the first. False where the other side is gone or does not take
  /// them before the deadline; after that the connection is of no more use. Raises no SIGPIPE.
  [[nodiscard]] bool send(const message& what, time_point until, int file = -1) const noexcept;

  /// Waits for a whole message until the deadline; a deadline in the past takes what has arrived.
  [[nodiscard]] received receive(time_point until);

 private:
  [[nodiscard]] const char* check_frame(const frame& in) const noexcept;
  void begin(const frame& in);
  [[nodiscard]] bool send_frame(frame& out, time_point until, int file) const noexcept;
  [[nodiscard]] receipt receive_frame(frame& in, unique_fd& file, time_point until, received& told) const noexcept;

  unique_fd socket_;
  const time_source* clock_ = nullptr;
  std::uint64_t longest_ = longest_body;
  std::optional<unfinished_message> partial_;
};

/// Two connected ends.
[[nodiscard]] BELAY_DECL std::optional<std::pair<connection, connection>> connected_pair() noexcept;

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/bootstrap/messages.ipp"  // IWYU pragma: export
#endif
