// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A file that lines are appended to. A line is written with one system call, so that a reader who follows the file
// never sees half of one. A full disk is an error with a name, not a log that silently ends.
//
//   belay::output log("steps.jsonl");
//   log.write(line.json(report));
//   belay::output terminal(stdout, "standard output");
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// A file descriptor that text is appended to. Writing allocates nothing.
class output {
 public:
  /// Creates `path`, or empties it. Closed by the destructor.
  explicit output(std::string path, where at = where::current());

  /// Writes to a descriptor of the caller, which stays open. `name` is its name in errors.
  output(int descriptor, std::string name) : path_(std::move(name)), descriptor_(descriptor) {}

  /// Writes to the descriptor of a stream of C, whose buffer is flushed first.
  output(std::FILE* stream, std::string name) : output(::fileno(stream), std::move(name)) { std::fflush(stream); }

  output(const output&) = delete;
  output& operator=(const output&) = delete;
  output(output&& other) noexcept
      : path_(std::move(other.path_)),
        descriptor_(std::exchange(other.descriptor_, -1)),
        owned_(std::exchange(other.owned_, false)),
        written_(other.written_) {}
  ~output();

  /// The path as it was given.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// Bytes written so far.
  [[nodiscard]] std::uint64_t written() const noexcept { return written_; }

  /// Writes `text`, newline included, with one system call. Only after a partial write there is another.
  void write(std::string_view text, where at = where::current());

  /// Throws file_error where there is no room for `bytes` more: before a run, not in it. Nothing is written, and
  /// nothing kept for later; a file system that cannot tell has room.
  void expect_room(std::uint64_t bytes, where at = where::current()) const;

  /// Takes the last `bytes` of a regular file back.
  void take_back(std::uint64_t bytes, where at = where::current());

 private:
  [[noreturn]] void fail(const char* what, int number, where at) const;

  std::string path_;
  int descriptor_ = -1;
  bool owned_ = false;
  std::uint64_t written_ = 0;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/report/output.ipp"  // IWYU pragma: export
#endif
