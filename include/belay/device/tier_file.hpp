// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The file tier: one file of exact size in a directory that the user gives, read and written beside the caller. It has
// no name and is gone with the process. Its transfers go around the page cache (O_DIRECT) where the file system lets
// them, through io_uring where there is liburing and the kernel allows it, else by one thread. A fixed number of them
// is under way at most; one more waits. The door of belay/device/tier_file; belay/device.hpp does not include it.
//
//   const std::size_t unit = belay::medium_of("/scratch").alignment;  // what a plan rounds up to
//   belay::tier_file file("/scratch", belay::checked_size(bytes).rounded_up(unit).saturated(), 3);
//   belay::file_transfer out = file.start_write(0, from);
//   compute();   // not with `from`
//   out.wait();  // throws tier_file_error where it was not written
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/tier_file/error.hpp"            // IWYU pragma: export
#include "belay/device/tier_file/reference.hpp"        // IWYU pragma: export
#include "belay/device/tier_file/streamed_layout.hpp"  // IWYU pragma: export
#include "belay/device/tier_file/system_calls.hpp"     // IWYU pragma: export
#include "belay/device/tier_file/transfer.hpp"         // IWYU pragma: export
#include "belay/device/tier_file/unnamed_file.hpp"     // IWYU pragma: export

namespace belay::inline BELAY_ABI {

/// How a file is accessed: `way` is ring or thread, and `why_thread` says why it is no ring where `best` was asked for.
struct tier_file_access : file_medium {
  /// How transfers go, and why not through io_uring.
  file_access way = file_access::thread;
  std::string why_thread;
};

/// The medium of files in `directory`; makes an empty one for a moment. Throws tier_file_error where it cannot be made.
template <tier_file_calls Calls = system_tier_file_calls>
[[nodiscard]] file_medium medium_of(const std::string& directory, where at = where::current()) {
  return unnamed_file<Calls>(directory, 0, at).medium();
}

template <tier_file_calls Calls = system_tier_file_calls>
class tier_file {
 public:
  /// Transfers at a time that a file may have.
  static constexpr std::size_t most_slots = 1024;

  /// A file of `bytes`, a multiple of the alignment, which are taken on the medium now and read as zeros; as many as
  /// `slots` transfers are under way at once. Throws tier_file_error where the directory is missing or full, or a ring
  /// was asked for and is refused.
  tier_file(const std::string& directory, std::size_t bytes, std::size_t slot_count,
            file_access way = file_access::best, where at = where::current())
      : file_(directory, bytes, at), bytes_(bytes) {
    if (slot_count == 0 || slot_count > most_slots)
      throw usage_error("a tier file has from 1 to 1024 transfers under way, not " + std::to_string(slot_count), at);
    static_cast<file_medium&>(access_) = file_.medium();
    start(slot_count, way, at);
  }
  tier_file(tier_file&&) noexcept = default;
  tier_file& operator=(tier_file&&) = delete;  // it would close a file that is still written to

  /// Fills `to` from byte `offset` on. Both and the address are multiples of the alignment and inside the file: else
  /// usage_error. `to` is the transfer's until it was waited for. Transfers that are under way at the same time are in
  /// no order. Any thread may start.
  [[nodiscard("a dropped transfer is waited for at once, and its error is lost")]] file_transfer start_read(
      std::uint64_t offset, std::span<std::byte> to, where at = where::current()) {
    return reference().start_read(offset, to, at);
  }
  /// Writes `from` at byte `offset`, alike.
  [[nodiscard("a dropped transfer is waited for at once, and its error is lost")]] file_transfer start_write(
      std::uint64_t offset, std::span<const std::byte> from, where at = where::current()) {
    return reference().start_write(offset, from, at);
  }
  /// A reference to this file that does not have its type.
  [[nodiscard]] tier_file_reference reference() const noexcept { return {*transfers_, bytes_, access_.alignment}; }

  /// Bytes, transfers at a time, the folder, and how transfers go.
  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t slot_count() const noexcept { return transfers_->slot_count(); }
  [[nodiscard]] const std::string& directory() const noexcept { return file_.directory(); }
  [[nodiscard]] const tier_file_access& access() const noexcept { return access_; }
  /// A power of two, in bytes.
  [[nodiscard]] std::size_t alignment() const noexcept { return access_.alignment; }
  /// How often a start has found all slots taken and waited.
  [[nodiscard]] std::uint64_t waits_for_slot() const noexcept { return transfers_->waits_for_slot(); }

 private:
  void start(std::size_t slot_count, file_access way, where at) {
    // A direct file is moved by whole blocks, a buffered one by bytes.
    const std::size_t granularity = access_.direct ? access_.alignment : 1;
    if (way != file_access::thread) {
      auto ring = std::make_unique<ring_transfers<typename Calls::ring>>(directory(), file_.descriptor(), slot_count,
                                                                         granularity);
      if (ring->refusal().empty()) {
        access_.way = file_access::ring;
        transfers_ = std::move(ring);
        return;
      }
      if (way == file_access::ring) refuse_start(0, ring->refusal(), at);
      access_.why_thread = ring->refusal();
    }
    try {
      transfers_ = std::make_unique<thread_transfers<Calls>>(directory(), file_.descriptor(), slot_count, granularity);
    } catch (const std::system_error& problem) {
      refuse_start(problem.code().value(), " (for its thread)", at);
    }
  }

  [[noreturn]] void refuse_start(int code, const std::string& why, where at) const {
    throw tier_file_error(directory(), {tier_file_operation::start, tier_file_fault::system, code, 0, 0, 0, why}, at);
  }

  unnamed_file<Calls> file_;
  std::size_t bytes_;
  tier_file_access access_;
  std::unique_ptr<file_transfers> transfers_;  // last: it uses the file
};

}  // namespace belay::inline BELAY_ABI
