// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Frames over a local socket, and waiting for descriptors.
#pragma once

#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "belay/backend/host/bootstrap/messages.hpp"
#include "belay/comm/event_count.hpp"
#include "belay/core/bounds.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

BELAY_DECL int poll_until(pollfd* entries, std::size_t count, time_point until, const time_source* clock) noexcept {
  const std::int64_t wait = time_to_sleep(until, clock).count();
  const timespec limit{static_cast<time_t>(wait / 1'000'000'000), static_cast<long>(wait % 1'000'000'000)};
  return ::ppoll(entries, count, &limit, nullptr);
}

BELAY_DECL bool wait_for_events(int file, short events, time_point until, const time_source* clock) noexcept {
  pollfd entry{file, events, 0};
  int ready = 0;
  do {
    ready = poll_until(&entry, 1, until, clock);
  } while ((ready < 0 && errno == EINTR) || (ready == 0 && time_to_sleep(until, clock).count() > 0));
  return ready > 0;
}

BELAY_DECL bool same(const token& a, const token& b) noexcept {
  std::byte different{0};
  for (std::size_t i = 0; i < a.size(); ++i) different |= a[i] ^ b[i];
  return different == std::byte{0};
}

BELAY_DECL message refused(std::uint64_t ticket, refusal why, std::string words, std::uint64_t requested,
                           std::uint64_t available) {
  message no;
  no.kind = message_kind::refused;
  no.ticket = ticket;
  no.numbers = {static_cast<std::uint64_t>(why), requested, available};
  no.body = std::move(words);
  return no;
}

BELAY_DECL std::string no_file_text(const received& got) {
  return got.lost_file ? "no descriptor is left for the segment that was sent: " + descriptor_limit_text()
                       : "no segment came with it";
}

BELAY_DECL void connection::stop_sending() noexcept { ::shutdown(socket_.get(), SHUT_WR); }

BELAY_DECL bool connection::send(const message& what, time_point until, int file) const noexcept {
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
    const std::size_t now = lesser_of(part, what.body.size() - done);
    std::memcpy(out.bytes, what.body.data() + done, now);
    done += now;
    out.used = static_cast<std::uint32_t>(now);
    out.left = what.body.size() - done;
    if (!send_frame(out, until, std::exchange(file, -1))) return false;
  } while (done < what.body.size());
  return true;
}

BELAY_DECL received connection::receive(time_point until) {
  received got;
  while (true) {
    frame in = {};
    unique_fd file;
    got.what = receive_frame(in, file, until, got);
    if (got.what != receipt::whole) return got;
    if (const char* wrong = check_frame(in)) {
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
    // Grows by the bytes that came, not by the length that was announced.
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

// What is wrong with a frame, or null.
BELAY_DECL const char* connection::check_frame(const frame& in) const noexcept {
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

BELAY_DECL void connection::begin(const frame& in) {
  message& said = partial_->said;
  said.kind = static_cast<message_kind>(in.kind);
  said.rank = in.rank;
  said.ticket = in.ticket;
  std::copy(std::begin(in.numbers), std::end(in.numbers), said.numbers.begin());
  std::copy(std::begin(in.secret), std::end(in.secret), said.secret.begin());
}

BELAY_DECL bool connection::send_frame(frame& out, time_point until, int file) const noexcept {
  iovec piece{&out, sizeof out};
  msghdr header = {};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int))] = {};
  if (file >= 0) {
    header.msg_control = ancillary;
    header.msg_controllen = sizeof ancillary;
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
    if (errno != EAGAIN && errno != EWOULDBLOCK) return false;
    if (!wait_for_events(socket_.get(), POLLOUT, until, clock_)) return false;
  }
}

BELAY_DECL receipt connection::receive_frame(frame& in, unique_fd& file, time_point until,
                                             received& told) const noexcept {
  iovec piece{&in, sizeof in};
  // Room for more than the one descriptor that is allowed: descriptors beyond it must be closed here.
  alignas(cmsghdr) char ancillary[CMSG_SPACE(8 * sizeof(int))];
  msghdr header = {};
  ssize_t got = -1;
  for (int resets = 0; got < 0;) {
    header = {};
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    header.msg_control = ancillary;
    header.msg_controllen = sizeof ancillary;
    got = ::recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got >= 0 || errno == EINTR) continue;
    // Reported once when the other side closed with unread data; its last messages are still behind that.
    if (errno == ECONNRESET && resets++ == 0) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return receipt::closed;
    if (!wait_for_events(socket_.get(), POLLIN, until, clock_)) return receipt::nothing;
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
  // Truncated after one descriptor: more were sent. Truncated without any: this process has no free descriptor; the
  // frame counts, and its descriptor is missing.
  const bool truncated = (header.msg_flags & MSG_CTRUNC) != 0;
  told.lost_file = truncated && files == 0;
  const char* wrong = nullptr;
  if ((header.msg_flags & MSG_TRUNC) != 0 || got != static_cast<ssize_t>(sizeof in))
    wrong = "a frame of another size";
  else if (files > 1 || (truncated && files == 1))
    wrong = "more than one descriptor in a frame, which is the limit";
  if (wrong != nullptr) told.why = wrong;
  return wrong == nullptr ? receipt::whole : receipt::garbled;
}

BELAY_DECL std::optional<std::pair<connection, connection>> connected_pair() noexcept {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return std::nullopt;
  return std::pair(connection(unique_fd(ends[0])), connection(unique_fd(ends[1])));
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
