// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the ranks' processes and the process that holds their memory say to each other: frames of one fixed size
// over a local socket. A frame is believed in nothing before its every field was looked at.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "belay/backend/host/bootstrap/poll_until.hpp"
#include "belay/core/config.hpp"
#include "belay/core/unique_fd.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// The secret of a doorway: 256 bits.
using token = std::array<std::byte, 32>;

/// Compares in a time that does not tell how much was right.
[[nodiscard]] inline bool same(const token& a, const token& b) noexcept {
  std::byte different{0};
  for (std::size_t i = 0; i < a.size(); ++i) different |= a[i] ^ b[i];
  return different == std::byte{0};
}

enum class message_kind : std::uint16_t {
  greeting = 1,  // holder: {nonce}
  hello,         // guest: rank, {size, nonce, start time}, token
  welcome,       // holder: {epoch, bytes}, the control segment
  refused,       // holder: {refusal, requested, available}, words
  keep,          // guest: {bytes}, a segment
  kept,          // holder: {region, bytes}
  attach,        // guest: {region}
  attached,      // holder: {region, bytes}, the segment
  drop,          // guest: {region}
  dropped,       // holder: {region}
  goodbye,       // guest: {outcome}, result or words
  farewell,      // holder
  shrink,        // guest: {microseconds it waits}
  renewed,       // holder: new rank, {epoch, bytes}, members, the new control segment
};
inline constexpr std::uint16_t last_message_kind = static_cast<std::uint16_t>(message_kind::renewed);

/// One message, whole. `ticket` is the sender's number for a request and comes back with the answer.
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
  late,       // the time the guest gave is over; the body says what was missing
};

/// A request's answer: no. `requested` and `available` are bytes, of a budget.
[[nodiscard]] inline message refused(std::uint64_t ticket, refusal why, std::string words, std::uint64_t requested = 0,
                                     std::uint64_t available = 0) {
  message no;
  no.kind = message_kind::refused;
  no.ticket = ticket;
  no.numbers = {static_cast<std::uint64_t>(why), requested, available};
  no.body = std::move(words);
  return no;
}

/// The last that a rank says: its body returned, with a result, or failed.
struct exit_message {
  enum class outcome : std::uint64_t { returned, failed };
  outcome how = outcome::returned;
  std::uint64_t kind = 0;  // of the failure; numbers that the two ends agree on
  std::string body;        // the result's bytes, or what went wrong in words
};

/// What came of waiting for a message.
enum class receipt : std::uint8_t {
  whole,    // a message
  nothing,  // not before the deadline
  closed,   // the other side is gone
  garbled,  // what came is no message of ours; the connection is of no more use
};

struct received {
  receipt what = receipt::nothing;
  message said;
  unique_fd file;          // came with it
  const char* why = "";    // garbled: what was wrong
  bool lost_file = false;  // one was sent, and this process had no number left to open it under
};

/// Why a message that shall bring a descriptor payloads none.
[[nodiscard]] inline std::string no_file_text(const received& got) {
  return got.lost_file ? "no descriptor is left for the segment that was sent: " + descriptor_limit_text()
                       : "no segment came with it";
}

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
  explicit connection(unique_fd socket) noexcept : socket_(std::move(socket)) {}

  [[nodiscard]] int fd() const noexcept { return socket_.get(); }
  [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(socket_); }
  void close() noexcept { socket_.reset(); }
  /// The other side reads the end; what it has said can still be received.
  void stop_sending() noexcept { ::shutdown(socket_.get(), SHUT_WR); }

  /// Bodies longer than this are not taken from the other side.
  void limit_body(std::uint64_t bytes) noexcept { longest_ = bytes; }

  /// Sends all of it, a file descriptor with its first frame. False where the other side is gone or does not take
  /// it before the deadline; after that the connection is of no more use. Raises no SIGPIPE.
  [[nodiscard]] bool send(const message& what, time_point until, int file = -1) const noexcept {
    frame out = {};
    out.magic_word = magic;
    out.version_number = version;
    out.kind = static_cast<std::uint16_t>(what.kind);
    out.rank = what.rank;
    out.ticket = what.ticket;
    std::copy(what.numbers.begin(), what.numbers.end(), out.numbers);
    std::copy(what.secret.begin(), what.secret.end(), out.secret);
    std::size_t done = 0;
    do {
      const std::size_t now = std::min(part, what.body.size() - done);
      std::memcpy(out.bytes, what.body.data() + done, now);
      done += now;
      out.used = static_cast<std::uint32_t>(now);
      out.left = what.body.size() - done;
      if (!send_frame(out, until, std::exchange(file, -1))) return false;
    } while (done < what.body.size());
    return true;
  }

  /// Waits until a message is whole or the deadline has come; a deadline in the past takes what is there.
  [[nodiscard]] received receive(time_point until) {
    received got;
    while (true) {
      frame in = {};
      unique_fd file;
      got.what = receive_frame(in, file, until, got);
      if (got.what != receipt::whole) return got;
      if (const char* wrong = look_at(in)) {
        got.what = receipt::garbled;
        got.why = wrong;
        return got;
      }
      if (!partial_) {
        partial_.emplace();
        partial_->file = std::move(file);
        partial_->lost_file = got.lost_file;
        begin(in);
      }
      // Grows as it comes, not as it is announced.
      partial_->said.body.append(reinterpret_cast<const char*>(in.bytes), in.used);
      partial_->left = in.left;
      if (in.left != 0) continue;
      got.said = std::move(partial_->said);
      got.file = std::move(partial_->file);
      got.lost_file = partial_->lost_file;
      partial_.reset();
      return got;
    }
  }

 private:
  // What is wrong with it, or nothing.
  [[nodiscard]] const char* look_at(const frame& in) const noexcept {
    if (in.magic_word != magic) return "a frame without our mark";
    if (in.version_number != version) return "a frame of another version";
    if (in.kind == 0 || in.kind > last_message_kind) return "a message of no known kind";
    if (in.used > part || (in.left != 0 && in.used != part)) return "a length that cannot be";
    if (partial_) {
      if (in.kind != static_cast<std::uint16_t>(partial_->said.kind) || in.ticket != partial_->said.ticket)
        return "a message in the middle of another";
      if (in.used == 0 || in.left >= partial_->left || in.used + in.left != partial_->left)
        return "a message that is longer or shorter than it said";
      return nullptr;
    }
    if (in.left > longest_ || in.used + in.left > longest_) return "a longer message than is taken";
    return nullptr;
  }

  void begin(const frame& in) {
    message& said = partial_->said;
    said.kind = static_cast<message_kind>(in.kind);
    said.rank = in.rank;
    said.ticket = in.ticket;
    std::copy(std::begin(in.numbers), std::end(in.numbers), said.numbers.begin());
    std::copy(std::begin(in.secret), std::end(in.secret), said.secret.begin());
  }

  // False where the deadline passes first.
  [[nodiscard]] bool await(short events, time_point until) const noexcept {
    pollfd entry{socket_.get(), events, 0};
    int ready = -1;
    while ((ready = poll_until(&entry, 1, until)) < 0 && errno == EINTR) {
    }
    return ready > 0;
  }

  [[nodiscard]] bool send_frame(frame& out, time_point until, int file) const noexcept {
    iovec piece{&out, sizeof out};
    msghdr header = {};
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    alignas(cmsghdr) char control_block[CMSG_SPACE(sizeof(int))] = {};
    if (file >= 0) {
      header.msg_control = control_block;
      header.msg_controllen = sizeof control_block;
      cmsghdr* const rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(rights), &file, sizeof file);
    }
    while (true) {
      const ssize_t sent = ::sendmsg(socket_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent == static_cast<ssize_t>(sizeof out)) return true;
      if (sent >= 0) return false;
      if (errno == EINTR) continue;
      if ((errno != EAGAIN && errno != EWOULDBLOCK) || !await(POLLOUT, until)) return false;
    }
  }

  [[nodiscard]] receipt receive_frame(frame& in, unique_fd& file, time_point until, received& told) const noexcept {
    iovec piece{&in, sizeof in};
    // Room for more than the one descriptor that is allowed: what comes beyond must be closed by us.
    alignas(cmsghdr) char control_block[CMSG_SPACE(8 * sizeof(int))];
    msghdr header = {};
    ssize_t got = -1;
    for (int resets = 0; got < 0;) {
      header = {};
      header.msg_iov = &piece;
      header.msg_iovlen = 1;
      header.msg_control = control_block;
      header.msg_controllen = sizeof control_block;
      got = ::recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
      if (got >= 0 || errno == EINTR) continue;
      // Told once when the other side closed with something unread; its last words are still behind that.
      if (errno == ECONNRESET && resets++ == 0) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) return receipt::closed;
      if (!await(POLLIN, until)) return receipt::nothing;
    }
    int files = 0;
    for (cmsghdr* about = CMSG_FIRSTHDR(&header); about != nullptr; about = CMSG_NXTHDR(&header, about)) {
      if (about->cmsg_level != SOL_SOCKET || about->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t count = (about->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int number = -1;
        std::memcpy(&number, CMSG_DATA(about) + i * sizeof(int), sizeof number);
        file.reset(number);  // closes the one before
        ++files;
      }
    }
    if (got == 0 && files == 0) return receipt::closed;
    // Cut off with one in our hands: there were more. With none: we have no number left to open it under; the frame
    // counts, its descriptor is missing.
    const bool cut_off = (header.msg_flags & MSG_CTRUNC) != 0;
    told.lost_file = cut_off && files == 0;
    const char* wrong = nullptr;
    if ((header.msg_flags & MSG_TRUNC) != 0 || got != static_cast<ssize_t>(sizeof in))
      wrong = "a frame of another size";
    else if (files > 1 || (cut_off && files == 1))
      wrong = "more than one descriptor in a frame, which is the limit";
    if (wrong != nullptr) told.why = wrong;
    return wrong == nullptr ? receipt::whole : receipt::garbled;
  }

  unique_fd socket_;
  std::uint64_t longest_ = longest_body;
  std::optional<unfinished_message> partial_;
};

/// Two connected ends.
[[nodiscard]] inline std::optional<std::pair<connection, connection>> connected_pair() noexcept {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return std::nullopt;
  return std::pair(connection(unique_fd(ends[0])), connection(unique_fd(ends[1])));
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
