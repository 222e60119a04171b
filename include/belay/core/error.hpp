// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Errors are of three kinds. What the compiler can see does not compile. A programmer's slip is a `usage_error`. A
// fault of the world (a peer, a file, too little memory) is one of the typed exceptions below; each carries what its
// reader needs to act: ranks, operation, bytes, file, call site.
//
//   try {
//     belay::all_reduce(group, values, belay::sum);
//   } catch (const belay::comm_error& problem) {
//     for (int rank : problem.about().culprits) std::printf("rank %d\n", rank);
//   }
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

// Which folder is missing, for the message about a file that could not be created. The system's "No such file or
// directory" then means one of the folders in its path.

/// " (there is no folder /where)" with the topmost folder of `path` that does not exist; "" where all of them do. It is
/// appended to the system's message.
[[nodiscard]] BELAY_DECL std::string missing_folder(const std::string& path);

/// Of which kind an exception was, for those who are told of it and do not have it: the peers of the rank whose body
/// threw it, and the process that forked that rank. `plan`: a refused plan. `other`: none of ours.
enum class error_kind : std::uint8_t { none, other, usage, input, budget, file, plan, communication, backend };

/// The name: "usage", "input", ...
[[nodiscard]] constexpr const char* name(error_kind kind) noexcept {
  switch (kind) {
    case error_kind::none: return "none";
    case error_kind::other: return "other";
    case error_kind::usage: return "usage";
    case error_kind::input: return "input";
    case error_kind::budget: return "budget";
    case error_kind::file: return "file";
    case error_kind::plan: return "plan";
    case error_kind::communication: return "communication";
    case error_kind::backend: return "backend";
  }
  return "unknown";
}

/// The kind of any exception: `other` where it is none of ours.
[[nodiscard]] BELAY_DECL error_kind kind_of(const std::exception& problem) noexcept;

/// The text of an exception; "(no text)" where it says nothing.
[[nodiscard]] BELAY_DECL const char* message_of(const std::exception& problem) noexcept;

/// Base of every exception Belay throws. `what()` begins with the site and holds nothing that a terminal would obey but
/// the newlines of our own lists and tables.
class error : public std::runtime_error {
 public:
  /// `message` without the site; what() has both.
  error(const std::string& message, where at);

  /// The call site that it is about, and its kind for those whom the exception does not reach.
  [[nodiscard]] where at() const noexcept { return at_; }
  [[nodiscard]] virtual error_kind kind() const noexcept { return error_kind::other; }

  /// From here on `what()` begins, after the site, with the layer's call that it was thrown out of. The innermost call
  /// names itself first, and its name stays. For steps.
  void name_call(const std::string& call);

 private:
  where at_;
  bool call_named_ = false;
};

/// An exception of others that a layer has thrown, or work that it has queued. `what()` is the site of the layer's
/// call, the layer, the micro-batch and the other's text with its lines. The other is nested:
/// `std::rethrow_if_nested(error)` throws it.
class layer_error : public error, public std::nested_exception {
 public:
  /// In a handler of `thrown`. `call` as for `name_call`.
  layer_error(const std::string& call, const std::exception& thrown, where at);
};

/// In a handler: throws what it handles again, with the layer's call in its text. Errors of Belay stay what they are,
/// other std::exceptions become a `layer_error` at `at`. A std::bad_alloc, and what is no std::exception, pass as they
/// are.
[[noreturn]] BELAY_DECL void rethrow_from(const std::string& call, where at);

/// The program asked for something that makes no sense: shapes that do not match, a handle used twice.
class usage_error : public error {
 public:
  using error::error;
  [[nodiscard]] error_kind kind() const noexcept override { return error_kind::usage; }
};

/// A size that a caller gave, or that follows from one, is more than any memory holds. `what` names operation and
/// argument. The refused call has written and allocated nothing.
class size_error : public usage_error {
 public:
  /// `what` is the whole sentence.
  size_error(const std::string& what, where at);
};

/// Input from outside (a flag, a configuration, a file's content) cannot be used as it is. The message may quote it:
/// `what()` is one line of printable text.
class input_error : public error {
 public:
  /// `message` names what cannot be used, and what can.
  explicit input_error(const std::string& message, where at = {});
  [[nodiscard]] error_kind kind() const noexcept override { return error_kind::input; }
};

/// A tier's budget does not hold what was asked. Nothing was allocated by the refused call.
class budget_error : public error {
 public:
  /// `tier` is what had no room, by name. `also` ends the text: what else is known.
  budget_error(const std::string& tier, std::size_t requested_bytes, std::size_t available_bytes, where at,
               const std::string& also = {});

  [[nodiscard]] error_kind kind() const noexcept override { return error_kind::budget; }
  /// Bytes that were asked for, and bytes that there were.
  [[nodiscard]] std::size_t requested_bytes() const noexcept { return requested_bytes_; }
  [[nodiscard]] std::size_t available_bytes() const noexcept { return available_bytes_; }

 private:
  std::size_t requested_bytes_;
  std::size_t available_bytes_;
};

/// A file could not be read or written, or holds what it should not; `offset` is the byte where, or 0, which is not
/// named: then it is about the file as such. Path and message may come from outside: `what()` is one line of printable
/// text, `path()` and `message()` are as they were given. `rank` is the rank of the world that met it, where all ranks
/// of a collective are told.
class file_error : public error {
 public:
  /// About byte `offset` of the file at `path`; `rank` is who met it, of files that ranks share.
  file_error(const std::string& path, std::uint64_t offset, const std::string& message, where at = {},
             int rank = no_rank);

  static constexpr int no_rank = -1;  // this process

  [[nodiscard]] error_kind kind() const noexcept override { return error_kind::file; }
  /// The path as it was given, the byte (0: the file as such), what is wrong, and the rank that met it or `no_rank`.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }
  [[nodiscard]] const std::string& message() const noexcept { return message_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }

 private:
  std::string path_;
  std::uint64_t offset_;
  std::string message_;
  int rank_;
};

/// How a group of ranks failed. Every later call on the group reports the same first cause.
enum class comm_fault { peer_failed, mismatch, timeout, revoked };

/// The name: "peer_failed", "mismatch", ...
[[nodiscard]] constexpr const char* name(comm_fault fault) noexcept {
  switch (fault) {
    case comm_fault::peer_failed: return "peer_failed";
    case comm_fault::mismatch: return "mismatch";
    case comm_fault::timeout: return "timeout";
    case comm_fault::revoked: return "revoked";
  }
  return "unknown";
}

/// A communication error: the ranks that caused it, in which operation, where here and where there. `what()` is one
/// line of printable text, whatever the other ranks said; the details are as they came.
class comm_error : public error {
 public:
  /// The known facts about the failure.
  struct details {
    /// The kind; the bytes of this rank's call; how long it slept.
    comm_fault fault = comm_fault::revoked;
    std::vector<int> culprits;           // ranks of the world that caused it
    std::string operation;               // "all_reduce", "barrier", ...; empty where it was none
    std::uint32_t group = 0;             // the group's number; 0 is the world
    std::uint64_t operation_number = 0;  // counted per group from 0
    std::size_t bytes = 0;
    std::string message;  // what happened there, in words
    where here;           // this rank's call
    std::string there;    // the culprit's site as text, if known
    double seconds_waited = 0;
    int signal = 0;      // what ended the first culprit, where a parent knows it; 0: none or not known
    int exit_code = -1;  // the first culprit's, where a parent knows it; -1: none or not known
    error_kind thrown = error_kind::none;  // what the first culprit threw; none: nothing, or not known
  };

  /// The text is made of the details.
  explicit comm_error(details what);

  [[nodiscard]] error_kind kind() const noexcept override { return error_kind::communication; }
  /// The kind, and all details.
  [[nodiscard]] comm_fault fault() const noexcept { return details_.fault; }
  [[nodiscard]] const details& about() const noexcept { return details_; }

 private:
  static std::string text(const details& d);

  details details_;
};

/// A call of the library that a backend stands on, such as the CUDA runtime, has failed: which call, on which rank, and
/// about how many bytes. `what()` is one line of printable text.
class backend_error : public error {
 public:
  /// The known facts about the failure.
  struct details {
    std::string call;       // as the backend's interface names it: "allocate", "record", ...
    int rank = 0;           // of the world, whose call it was
    std::size_t bytes = 0;  // that it was about; 0: none
    std::string message;    // what the library says
    /// This rank's call.
    where here;
  };

  /// The text is made of the details.
  explicit backend_error(details what);

  [[nodiscard]] error_kind kind() const noexcept override { return error_kind::backend; }
  /// All details.
  [[nodiscard]] const details& about() const noexcept { return details_; }

 private:
  static std::string text(const details& d);

  details details_;
};

/// "4x128x256", for messages.
[[nodiscard]] BELAY_DECL std::string shape_text(std::span<const std::size_t> shape);

/// Throws the `size_error` of a tensor of such a shape, whose name `owner()` returns.
[[noreturn]] BELAY_DECL void refuse_tensor(std::span<const std::size_t> shape, std::size_t element_bytes,
                                           function_ref<std::string()> owner, const where& at);

/// The text of an exception, for a terminal: escaped. Its lines stay lines.
[[nodiscard]] BELAY_DECL std::string printable_what(const std::exception& problem);

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/core/error.ipp"  // IWYU pragma: export
#endif
