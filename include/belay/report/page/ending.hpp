// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A page says "running" until its writer says otherwise. Where the writer ends before it can, by a signal, whoever is
// left changes those words in the file.
// IWYU pragma: private, include "belay/report/page.hpp"
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <string>
#include <string_view>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"

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

}  // namespace belay::inline BELAY_ABI
