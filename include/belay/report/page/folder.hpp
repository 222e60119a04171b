// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The folder of a report: samples.jsonl, which is appended to, and index.html, which is replaced as a whole. The page
// there says "running" until its writer says otherwise. Where the writer ends before it can, by a signal, whoever is
// left changes those words in the file.
// IWYU pragma: private, include "belay/report/page.hpp"
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/unique_fd.hpp"
#include "belay/core/where.hpp"
#include "belay/report/output.hpp"
#include "belay/report/page/markup.hpp"
#include "belay/report/text_buffer.hpp"

namespace belay::inline BELAY_ABI {

/// The words of a running page, and their change. It allocates nothing and calls only what a signal handler may.
class page_ending {
 public:
  /// Blanks after it leave room for other words.
  static constexpr std::string_view running = "running    ";
  static constexpr std::string_view refresh = "<meta http-equiv=\"refresh\" content=\"10\">";
  /// Around the reason of a page that says "failed", in every page.
  static constexpr std::string_view reason = "<p class=\"bad\">", end_of_reason = "</p>";
  static constexpr std::size_t most_reason = 4000;  // bytes

  /// Puts `words`, which are no longer than `running`, into the page at `path` where it says so. Any other page stays.
  static void write(const char* path, std::string_view words) noexcept {
    const int page = ::open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (page < 0) return;
    std::array<char, 16384> begin;
    const ssize_t got = ::pread(page, begin.data(), begin.size(), 0);
    const std::string_view text(begin.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
    if (put(page, text, text.find(running), words, running.size()))
      put(page, text, text.find(refresh), "", refresh.size());
    ::close(page);
  }

 private:
  static bool put(int page, std::string_view text, std::size_t where_it_is, std::string_view words,
                  std::size_t size) noexcept {
    if (where_it_is == text.npos) return false;
    std::array<char, refresh.size()> out;
    out.fill(' ');
    std::copy_n(words.begin(), lesser_of(words.size(), size), out.begin());
    return ::pwrite(page, out.data(), size, static_cast<off_t>(where_it_is)) == static_cast<ssize_t>(size);
  }
};

/// While it lives a signal that ends this process makes a page that says "running" say "interrupted" first, or "failed"
/// where it is of an error of the process itself. What the page shows stays as it was drawn: a handler can interrupt
/// whatever is being written, and may not read it. One in a process at a time; signals that are handled or ignored
/// already stay so. A signal handler is given a number and can be given nothing else, so what it finds is static.
class report_interruption {
 public:
  /// Of the page at `path`. Where another is watched, or the path is longer than a system's may be, it does nothing.
  explicit report_interruption(const std::string& path) noexcept {
    bool none = false;
    if (path.size() >= sizeof watched_page_.path || !watched_page_.used.compare_exchange_strong(none, true)) return;
    watches_ = true;
    watched_page_.owner = ::getpid();
    path.copy(watched_page_.path, path.size());
    watched_page_.path[path.size()] = '\0';
    struct sigaction ours = {};
    ours.sa_handler = on_signal;
    ours.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigemptyset(&ours.sa_mask);
    for (const int number : ending) {
      struct sigaction found = {};
      if (::sigaction(number, nullptr, &found) == 0 && (found.sa_flags & SA_SIGINFO) == 0 &&
          found.sa_handler == SIG_DFL)
        ::sigaction(number, &ours, nullptr);
    }
  }
  report_interruption(const report_interruption&) = delete;
  report_interruption& operator=(const report_interruption&) = delete;
  ~report_interruption() {
    if (!watches_) return;
    for (const int number : ending) {
      struct sigaction found = {};
      if (::sigaction(number, nullptr, &found) == 0 && (found.sa_flags & SA_SIGINFO) == 0 &&
          found.sa_handler == on_signal)
        ::signal(number, SIG_DFL);
    }
    watched_page_.used = false;
  }

 private:
  static constexpr std::array ending{SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
  static constexpr bool is_of_others(int number) noexcept {
    return number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT;
  }
  struct watched_page {
    std::atomic<bool> used;
    pid_t owner;  // a forked child has a copy of all this
    char path[PATH_MAX];
  };
  static_assert(std::atomic<bool>::is_always_lock_free);

  static void on_signal(int number) {
    const int error = errno;
    if (::getpid() == watched_page_.owner)
      page_ending::write(watched_page_.path, is_of_others(number) ? "interrupted" : "failed");
    ::raise(number);  // delivered when this handler returns, to what there is by default
    errno = error;
  }

  static inline constinit watched_page watched_page_{{false}, 0, {}};

  bool watches_ = false;
};

/// Whether a run goes on with the report that is in a folder.
enum class report_start : std::uint8_t { afresh, resumed };

class report_folder {
 public:
  /// Makes the folder where it is missing. Throws input_error for one with another run's report, or one that a run
  /// writes to now, and file_error where no file can be written to it. The folder is this object's until its end, also
  /// where a process that was forked has it too.
  report_folder(const std::string& path, report_start start, where at = where::current())
      : path_(path),
        samples_path_(path + "/samples.jsonl"),
        page_path_(path + "/index.html"),
        temporary_path_(path + "/index.html.tmp") {
    std::error_code wrong;
    std::filesystem::create_directories(path, wrong);
    if (wrong)
      throw file_error(path, 0, "cannot be made the folder of a report: " + wrong.message() + "; name another", at);
    if (start == report_start::afresh) expect_unused(at);
    if (::access(path.c_str(), W_OK | X_OK) != 0)
      throw file_error(path, 0, "no report can be written to it: " + error_text(errno) + "; name another folder", at);
    samples_.reset(open(samples_path_, O_RDWR | O_CREAT | O_APPEND | O_NONBLOCK, at));
    if (!std::filesystem::is_regular_file(samples_path_, wrong))
      throw file_error(samples_path_, 0, "is no regular file, as samples are: remove it, or name another folder", at);
    if (::flock(samples_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      throw input_error(path + " has the report of a run that is under way: name another folder", at);
    if (start == report_start::afresh) expect_unused(at);  // a run may have come and gone meanwhile
    lines_.emplace(samples_.get(), samples_path_);
    lines_->expect_room(least_room, at);
  }
  report_folder(const report_folder&) = delete;
  report_folder& operator=(const report_folder&) = delete;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] const std::string& samples_path() const noexcept { return samples_path_; }
  [[nodiscard]] const std::string& page_path() const noexcept { return page_path_; }

  /// A line with its newline.
  void append(std::string_view line, where at = where::current()) { lines_->write(line, at); }

  /// Calls `keep(line, begin)` with each line, without its newline, and the byte at which it begins, until it returns
  /// false: the file is cut before that line, and before one that has no newline.
  template <class Keep>
  void cut_where(Keep&& keep, where at = where::current()) {
    std::string text;
    std::uint64_t begin = 0, read = 0;  // of the line that `text` begins with; of the file
    for (bool more = true; more;) {
      std::array<char, 65536> piece;
      const ssize_t got = ::pread(samples_.get(), piece.data(), piece.size(), static_cast<off_t>(read));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw file_error(samples_path_, read, "cannot be read: " + error_text(errno), at);
      read += static_cast<std::uint64_t>(got);
      text.append(piece.data(), static_cast<std::size_t>(got));
      more = got > 0;
      std::size_t first = 0;
      for (std::size_t end; more && (end = text.find('\n', first)) != std::string::npos; first = end + 1) {
        more = keep(std::string_view(text).substr(first, end - first), begin + first);
        if (!more) break;
      }
      begin += first;
      text.erase(0, first);
      if (text.size() > most_line) throw file_error(samples_path_, begin, "a line has more than 16 MiB", at);
    }
    if (::ftruncate(samples_.get(), static_cast<off_t>(begin)) != 0)
      throw file_error(samples_path_, begin, "cannot be cut: " + error_text(errno), at);
  }

  /// Replaces the page: who reads it sees the old one or the new one. Allocates nothing.
  void replace_page(std::string_view text, where at = where::current()) const {
    const unique_fd file(open(temporary_path_, O_WRONLY | O_CREAT | O_TRUNC, at));
    try {
      write(file.get(), text, at);
    } catch (const file_error&) {
      ::unlink(temporary_path_.c_str());
      throw;
    }
  }

  /// Puts `why` into a page that says "failed", instead of the reason that it has: for whoever knows why the run as a
  /// whole has failed, when the rank that wrote the page knows its own reason or is gone. Any other page stays.
  void explain(std::string_view why, where at = where::current()) const {
    std::ifstream in(page_path_, std::ios::binary);
    std::string page{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    const std::size_t begin = page.find(page_ending::reason), end = page.find(page_ending::end_of_reason, begin);
    if (end == page.npos || page.rfind("<p class=\"soft\">failed", begin) == page.npos) return;
    std::string room(8 * page_ending::most_reason, ' ');
    text_buffer shown(room);
    page_markup(shown).text(why, page_ending::most_reason);
    page.replace(begin, end - begin, std::string(page_ending::reason).append(shown.text()));
    replace_page(page, at);
  }

 private:
  static constexpr std::size_t most_line = std::size_t{1} << 24U;
  static constexpr std::size_t least_room = std::size_t{1} << 16U;  // of a short run's page and samples

  // And puts it into the page's place.
  void write(int file, std::string_view text, where at) const {
    for (std::string_view rest = text; !rest.empty();) {
      const ssize_t put = ::write(file, rest.data(), rest.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0)
        throw file_error(temporary_path_, text.size() - rest.size(), "cannot be written: " + error_text(errno), at);
      rest.remove_prefix(static_cast<std::size_t>(put));
    }
    if (std::rename(temporary_path_.c_str(), page_path_.c_str()) != 0)
      throw file_error(page_path_, 0, "cannot be replaced: " + error_text(errno), at);
  }

  void expect_unused(where at) const {
    std::error_code wrong;
    const auto kind = [&](const std::string& path) {
      const auto found = std::filesystem::status(path, wrong).type();
      if (found == std::filesystem::file_type::none)
        throw file_error(path, 0, "cannot be examined: " + wrong.message(), at);
      return found;
    };
    bool used = kind(page_path_) != std::filesystem::file_type::not_found;
    if (kind(samples_path_) == std::filesystem::file_type::regular) {
      used = used || std::filesystem::file_size(samples_path_, wrong) > 0;
      if (wrong) throw file_error(samples_path_, 0, "cannot be examined: " + wrong.message(), at);
    }
    if (used) throw input_error(path_ + " has the report of a run: resume that run, or name another folder", at);
  }

  [[nodiscard]] static int open(const std::string& path, int flags, where at) {
    int out = -1;
    do {
      out = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
    } while (out < 0 && errno == EINTR);
    if (out < 0) throw file_error(path, 0, "cannot be opened for writing: " + error_text(errno), at);
    return out;
  }

  std::string path_;
  std::string samples_path_;
  std::string page_path_;
  std::string temporary_path_;
  unique_fd samples_;
  std::optional<output> lines_;
};

}  // namespace belay::inline BELAY_ABI
