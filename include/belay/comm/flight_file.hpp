// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A flight snapshot as a file: what each rank did last, and why the world stopped. It is written once, into the folder
// that BELAY_FLIGHT_DIR names; belay-fr reads it.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/comm/flight_recorder.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/policies.hpp"

namespace belay::inline BELAY_ABI {

// One sentence about why a world stopped: which rank never entered which operation, what it does instead, and which
// ranks wait for it. The first cause says what one rank saw; the recorders say what all did: the operations that ranks
// are inside, and which of the group never entered.

/// An operation that ranks are in, and do not come out of.
struct open_operation {
  lane which = lane::caller;
  flight_record call;          // as the first of those ranks recorded it
  std::vector<int> inside;     // ranks of the world
  std::vector<int> missing;    // of its group, that never entered it
  std::uint64_t since_us = 0;  // by the steady clock, the longest wait; 0 where nobody sleeps
};

/// The last operation in that group that is of the same kind as `call` (exchanges are counted on
/// their own); an empty record where there is none.
[[nodiscard]] BELAY_DECL flight_record last_like(const flight_history& from, const flight_record& call);

/// All operations that ranks are in, in the order of their groups' numbers.
[[nodiscard]] BELAY_DECL std::vector<open_operation> open_operations(const flight_snapshot& world);

/// "12 us", "3.4 ms", "0.21 s"; nothing for 0.
[[nodiscard]] BELAY_DECL std::string duration_text(std::uint64_t us);

/// "all_gather #118", "started all_gather #118 of group 2"; exchanges are counted by each rank for itself.
[[nodiscard]] BELAY_DECL std::string operation_text(const flight_record& call, lane which);

/// Why the world stopped, in one sentence; which ranks wait where when it has not.
[[nodiscard]] BELAY_DECL std::string verdict(const flight_snapshot& world);

/// Why a file of that path "cannot be ...", with the folder that is missing.
[[nodiscard]] BELAY_DECL std::string flight_output_text(const std::string& path, const char* what, int error);

/// A new file (mode 0600) that has its name only when it is whole. Throws file_error, and removes what it wrote.
template <files_policy Files = posix_files>
class flight_output {
 public:
  explicit flight_output(std::string path)
      : path_(std::move(path)), temporary_(path_ + ".tmp-" + std::to_string(::getpid())) {
    static_cast<void>(Files::remove(temporary_.c_str()));  // of a process of the same number that was killed at it
    constexpr int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    file_ = Files::open(temporary_.c_str(), flags, S_IRUSR | S_IWUSR);
    if (file_ < 0) fail("cannot be created");
  }
  flight_output(const flight_output&) = delete;
  flight_output& operator=(const flight_output&) = delete;
  ~flight_output() {
    if (file_ < 0) return;
    static_cast<void>(Files::close(file_));
    static_cast<void>(Files::remove(temporary_.c_str()));
  }

  void put(std::string_view text) {
    while (!text.empty()) {
      const ssize_t written = Files::write_at(file_, text.data(), text.size(), static_cast<off_t>(offset_));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail("cannot be written");
      offset_ += static_cast<std::uint64_t>(written);
      text.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  /// The name comes first: a launcher may end a job that fails at any time.
  void commit() {
    if (Files::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot get its name");
    if (Files::sync(file_) != 0) {
      const int why = errno;
      static_cast<void>(Files::remove(path_.c_str()));
      errno = why;
      fail("cannot be synchronised");
    }
    static_cast<void>(Files::close(std::exchange(file_, -1)));
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    const int number = errno;
    throw file_error(path_, offset_, flight_output_text(path_, what, number));
  }

  std::string path_, temporary_;
  int file_ = -1;
  std::uint64_t offset_ = 0;
};

/// Writes the text of a flight file, in pieces. See docs/howto/read_flight_files.md.
BELAY_DECL void put_flight_json(const flight_snapshot& world, const std::string& said,
                                function_ref<void(std::string_view)> put);

/// "FOLDER/belay-flight-JOB.json"; survivors that went on without others add how often they did.
[[nodiscard]] BELAY_DECL std::string flight_path(const std::string& folder, std::uint64_t job, std::uint64_t epoch);

/// Writes histories, the first cause and the verdict `said` as belay-flight-JOB.json into `folder`, which is made if
/// only it is missing; returns the path. The file appears when it is whole. May be called while ranks run. Throws
/// file_error.
template <files_policy Files = posix_files>
std::string write_flight_file(const flight_snapshot& world, const std::string& folder, const std::string& said) {
  const std::string path = flight_path(folder, world.job, world.epoch);
  static_cast<void>(::mkdir(folder.c_str(), S_IRWXU));  // what went wrong is said when the file cannot be created
  flight_output<Files> out(path);
  put_flight_json(world, said, [&](std::string_view text) { out.put(text); });
  out.commit();
  return path;
}

/// BELAY_FLIGHT_DIR: the folder for flight files; nothing when it is not set.
[[nodiscard]] BELAY_DECL std::optional<std::string> flight_folder();

/// Of a world that has stopped: writes the flight file into `folder` and prints the verdict with the
/// file's name, or why there is none, as one line to standard error. Call it once.
BELAY_DECL void report_flight(const flight_snapshot& world, const std::string& folder);

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/flight_file.ipp"  // IWYU pragma: export
#endif
