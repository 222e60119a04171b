// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the ranks print, on its way to our own output: whole lines, each with its rank before it.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <string>
#include <string_view>

#include "belay/core/unique_fd.hpp"

namespace belay_run {

/// Where lines go. It never blocks: what is not taken yet is kept.
class outlet {
 public:
  explicit outlet(int file) : file_(file) {}

  [[nodiscard]] int file() const noexcept { return file_; }
  [[nodiscard]] bool empty() const noexcept { return done_ == queue_.size(); }
  /// More than a megabyte is not written yet: its readers should pause.
  [[nodiscard]] bool full() const noexcept { return queue_.size() - done_ > (std::size_t{1} << 20); }
  /// The reader is gone.
  [[nodiscard]] bool closed() const noexcept { return closed_; }

  void add(std::string_view bytes) {
    if (!closed_) queue_.append(bytes);
  }

  /// Writes what a pipe that is ready takes without blocking.
  void write_some() {
    const std::size_t part = std::min<std::size_t>(4096, queue_.size() - done_);
    const ssize_t written = ::write(file_, queue_.data() + done_, part);
    if (written < 0) {
      if (errno == EAGAIN || errno == EINTR) return;
      closed_ = true;
      written_all();
      return;
    }
    done_ += static_cast<std::size_t>(written);
    if (empty())
      written_all();
    else if (done_ > (std::size_t{1} << 16))
      queue_.erase(0, done_), done_ = 0;
  }

  void write_all() {
    while (!empty()) {
      pollfd entry{file_, POLLOUT, 0};
      if (::poll(&entry, 1, -1) > 0) write_some();
    }
  }

 private:
  void written_all() {
    queue_.clear();
    done_ = 0;
  }

  int file_;
  std::string queue_;
  std::size_t done_ = 0;
  bool closed_ = false;
};

/// One stream of one rank. Bytes are passed on as they are; a last line without a newline gets one, and so does a
/// line after 16 MiB.
class line_reader {
 public:
  line_reader(belay::unique_fd from, int rank, outlet& to)
      : from_(std::move(from)), mark_("[" + std::to_string(rank) + "] "), to_(&to) {
    ::fcntl(from_.get(), F_SETFL, ::fcntl(from_.get(), F_GETFL) | O_NONBLOCK);
  }

  /// -1 once it has ended.
  [[nodiscard]] int file() const noexcept { return from_.get(); }
  [[nodiscard]] const outlet& to() const noexcept { return *to_; }

  /// Reads what is there, up to 64 KiB; false when there was nothing (yet).
  bool read_some() {
    if (to_->closed()) {  // as in any pipeline: the writer learns of it
      from_.reset();
      return false;
    }
    char bytes[std::size_t{64} << 10];
    const ssize_t got = ::read(from_.get(), bytes, sizeof bytes);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got <= 0) {
      finish();
      return false;
    }
    take({bytes, static_cast<std::size_t>(got)});
    return true;
  }

  /// Reads what is there and closes, also while another process holds the other side.
  void finish() {
    if (from_) {
      const belay::unique_fd last(from_.release());
      if (!line_.empty()) end_line("");
    }
  }

 private:
  void take(std::string_view bytes) {
    while (!bytes.empty()) {
      const std::size_t newline = bytes.find('\n');
      const std::string_view piece = bytes.substr(0, newline);
      bytes.remove_prefix(newline == std::string_view::npos ? bytes.size() : newline + 1);
      if (newline != std::string_view::npos)
        end_line(piece);
      else
        line_.append(piece);
      if (line_.size() > (std::size_t{16} << 20)) end_line("");
    }
  }
  void end_line(std::string_view rest) {
    to_->add(mark_);
    to_->add(line_);
    to_->add(rest);
    to_->add("\n");
    line_.clear();
  }

  belay::unique_fd from_;
  std::string mark_;
  outlet* to_;
  std::string line_;
};

}  // namespace belay_run
