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

#include <unistd.h>  // getpid

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "belay/core/bounds.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/unique_fd.hpp"
#include "belay/core/where.hpp"
#include "belay/device/tier_file/error.hpp"         // IWYU pragma: export
#include "belay/device/tier_file/system_calls.hpp"  // IWYU pragma: export
#include "belay/device/tier_file/transfer.hpp"      // IWYU pragma: export

namespace belay::inline BELAY_ABI {

/// The properties of files in a directory.
struct file_medium {
  std::size_t alignment = 4096;  // of offsets, lengths and addresses
  bool direct = false;           // transfers go around the page cache
  bool in_memory = false;        // tmpfs: its bytes are the machine's memory
  std::string why_buffered;      // where it is not direct

  /// For people: "direct, in blocks of 512 bytes", or "buffered: O_DIRECT is refused: ...".
  [[nodiscard]] std::string text() const {
    if (!direct) return "buffered: " + why_buffered;
    return "direct, in blocks of " + std::to_string(alignment) + " bytes";
  }
};

/// A file without a name: the system frees it with its last descriptor, however the process ends.
template <tier_file_calls Calls>
class unnamed_file {
 public:
  /// Takes `bytes` on the medium. Throws tier_file_error, and usage_error where they are no multiple of the alignment.
  unnamed_file(std::string directory, std::size_t bytes, where at);
  unnamed_file(unnamed_file&& other) noexcept
      : directory_(std::move(other.directory_)),
        descriptor_(std::exchange(other.descriptor_, -1)),
        medium_(std::move(other.medium_)) {}
  unnamed_file& operator=(unnamed_file&&) = delete;
  ~unnamed_file() { close(); }

  /// The directory, the open file, and what its medium is.
  [[nodiscard]] const std::string& directory() const noexcept { return directory_; }
  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  [[nodiscard]] const file_medium& medium() const noexcept { return medium_; }

 private:
  void open(where at);

  void prepare(std::size_t bytes, where at);

  void allocate(std::size_t bytes, where at);

  [[noreturn]] void refuse(int code, std::string more, where at) const;

  void close() noexcept {
    if (descriptor_ >= 0) static_cast<void>(Calls::close(descriptor_));
    descriptor_ = -1;
  }

  std::string directory_;
  int descriptor_ = -1;
  file_medium medium_;
};

/// Valid as long as the file lives; another file may be moved from it meanwhile.
/// A tier's file for those that read and write it whatever calls it is made of.
class tier_file_reference {
 public:
  /// To none.
  tier_file_reference() = default;
  tier_file_reference(file_transfers& transfers, std::size_t bytes, std::size_t alignment) noexcept
      : transfers_(&transfers), bytes_(bytes), alignment_(alignment) {}

  /// Fills `to` from byte `offset` on; `start_write` writes `from` there. Offset, length and address are multiples of
  /// the alignment and inside the file: else usage_error. The memory is the transfer's until it was waited for.
  /// Transfers that are under way at the same time are in no order. Any thread may start.
  [[nodiscard("a dropped transfer is waited for at once, and its error is lost")]] file_transfer start_read(
      std::uint64_t offset, std::span<std::byte> to, where at = where::current()) const {
    expect_fits(tier_file_operation::read, offset, to, at);
    return transfers_->start(tier_file_operation::read, offset, to.data(), to.size());
  }
  [[nodiscard("a dropped transfer is waited for at once, and its error is lost")]] file_transfer start_write(
      std::uint64_t offset, std::span<const std::byte> from, where at = where::current()) const {
    expect_fits(tier_file_operation::write, offset, from, at);
    return transfers_->start(tier_file_operation::write, offset, const_cast<std::byte*>(from.data()), from.size());
  }

  /// Bytes of the file, and its alignment; false, and equal to no file, where it is of none.
  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t alignment() const noexcept { return alignment_; }
  [[nodiscard]] explicit operator bool() const noexcept { return transfers_ != nullptr; }
  [[nodiscard]] bool operator==(const tier_file_reference& other) const noexcept {
    return transfers_ == other.transfers_;
  }

 private:
  void expect_fits(tier_file_operation what, std::uint64_t offset, std::span<const std::byte> memory, where at) const {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    if (((offset | memory.size() | address) & (alignment_ - 1)) != 0) [[unlikely]]
      throw usage_error(sentence(what, offset, memory.size()) + ": offset, length and address (" +
                            std::to_string(address % alignment_) + " beyond a block) are multiples of " +
                            std::to_string(alignment_),
                        at);
    if (offset > bytes_ || memory.size() > bytes_ - offset) [[unlikely]]
      throw usage_error(sentence(what, offset, memory.size()) + ": it has " + std::to_string(bytes_), at);
  }
  [[nodiscard]] static std::string sentence(tier_file_operation what, std::uint64_t offset, std::size_t bytes) {
    return std::string(name(what)) + " of " + std::to_string(bytes) + " bytes from byte " + std::to_string(offset) +
           " of a tier file on";
  }

  file_transfers* transfers_ = nullptr;
  std::size_t bytes_ = 0, alignment_ = 1;
};

/// How bytes are transferred: by an io_uring, by a thread with pread and pwrite, or by the first of these that there
/// is.
enum class file_access : std::uint8_t { best, ring, thread };

/// The name of a way.
[[nodiscard]] constexpr const char* name(file_access way) noexcept {
  switch (way) {
    case file_access::best: return "best";
    case file_access::ring: return "ring";
    case file_access::thread: return "thread";
  }
  return "unknown";
}

/// Of tier file: the directory of its files, and how they are accessed.
struct file_memory {
  /// Directory, bytes of a slot, and access.
  std::string folder = {};
  std::size_t piece = std::size_t{1} << 19;  // bytes that a slot of the ring holds, at most
  file_access access = file_access::best;
};

/// Sizes in bytes, of what is stored in a file and passes through slots of a ring in memory.
class streamed_layout {
 public:
  /// Slots of a ring at most.
  static constexpr std::size_t most_slots = 4;

  streamed_layout() = default;
  /// `alignment` is that of the file's medium; a slot has `piece` bytes at most, rounded up to it.
  streamed_layout(std::size_t alignment, std::size_t piece) noexcept
      : alignment_(alignment), piece_(rounded(greater_of(piece, alignment))) {}

  /// The alignment of file and slots.
  [[nodiscard]] std::size_t alignment() const noexcept { return alignment_; }
  /// Of a file that holds `bytes`.
  [[nodiscard]] std::size_t file_bytes(std::size_t bytes) const noexcept { return rounded(bytes); }
  [[nodiscard]] std::size_t slot_bytes(std::size_t bytes) const noexcept { return lesser_of(piece_, rounded(bytes)); }
  [[nodiscard]] std::size_t slot_count(std::size_t bytes) const noexcept {
    return bytes == 0 ? 0 : lesser_of(most_slots, (rounded(bytes) - 1) / slot_bytes(bytes) + 1);
  }
  /// The ring, with room to align its first slot.
  [[nodiscard]] std::size_t ring_bytes(std::size_t bytes) const noexcept {
    return bytes == 0 ? 0 : slot_count(bytes) * slot_bytes(bytes) + alignment_;
  }
  /// A ring for files of any size.
  [[nodiscard]] std::size_t whole_ring_bytes() const noexcept { return most_slots * piece_ + alignment_; }

  /// `bytes` in whole blocks.
  [[nodiscard]] std::size_t rounded(std::size_t bytes) const noexcept {
    return checked_size(bytes).rounded_up(alignment_).saturated();
  }

 private:
  std::size_t alignment_ = 4096;
  std::size_t piece_ = 4096;
};

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
            file_access way = file_access::best, where at = where::current());
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
  void start(std::size_t slot_count, file_access way, where at);

  [[noreturn]] void refuse_start(int code, const std::string& why, where at) const;

  unnamed_file<Calls> file_;
  std::size_t bytes_;
  tier_file_access access_;
  std::unique_ptr<file_transfers> transfers_;  // last: it uses the file
};

template <tier_file_calls Calls>
unnamed_file<Calls>::unnamed_file(std::string directory, std::size_t bytes, where at)
    : directory_(std::move(directory)) {
  open(at);
  try {
    prepare(bytes, at);
  } catch (...) {
    close();
    throw;
  }
}

template <tier_file_calls Calls>
void unnamed_file<Calls>::open(where at) {
  do {
    descriptor_ = Calls::open_unnamed(directory_.c_str());
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ >= 0) return;
  // Answers of file systems and kernels without O_TMPFILE.
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) refuse(errno, "", at);
  const std::string stem = directory_ + "/.belay-tier-" + std::to_string(::getpid()) + "-";
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const std::string path = stem + std::to_string(attempt);
    do {
      descriptor_ = Calls::open_new(path.c_str());
    } while (descriptor_ < 0 && errno == EINTR);
    if (descriptor_ < 0 && errno == EEXIST) continue;  // of a killed process with the same number
    if (descriptor_ < 0) refuse(errno, "", at);
    if (Calls::unlink(path.c_str()) == 0) return;
    const int code = errno;
    close();
    refuse(code, " (its name " + path + " cannot be removed)", at);
  }
  refuse(EEXIST, " (" + stem + "0 and 999 more)", at);
}

template <tier_file_calls Calls>
void unnamed_file<Calls>::prepare(std::size_t bytes, where at) {
  medium_.in_memory = Calls::in_memory(descriptor_);
  const std::optional<std::size_t> told = Calls::direct_alignment(descriptor_);
  if (medium_.in_memory)
    medium_.why_buffered = "the directory is in memory (tmpfs)";
  else if (told == std::size_t{0})
    medium_.why_buffered = "the file system has no O_DIRECT for this file";
  else if (told)
    medium_.alignment = *told;
  if (bytes % medium_.alignment != 0)
    throw usage_error("a tier file of " + std::to_string(bytes) + " bytes: this is no multiple of " +
                          std::to_string(medium_.alignment) + ", to which " + directory_ + " aligns",
                      at);
  if (bytes != 0) allocate(bytes, at);
  if (!medium_.why_buffered.empty()) return;
  medium_.direct = Calls::make_direct(descriptor_) == 0;
  if (!medium_.direct) medium_.why_buffered = "O_DIRECT is refused: " + error_text(errno);
}

template <tier_file_calls Calls>
void unnamed_file<Calls>::allocate(std::size_t bytes, where at) {
  int code = 0;
  do {
    code = Calls::allocate(descriptor_, static_cast<off_t>(bytes));
  } while (code == EINTR);
  if (code != 0)
    throw tier_file_error(directory_, {tier_file_operation::allocate, fault_of(code), code, 0, bytes, 0, {}}, at);
}

template <tier_file_calls Calls>
[[noreturn]] void unnamed_file<Calls>::refuse(int code, std::string more, where at) const {
  if (code == ENOENT || code == ENOTDIR) more += missing_folder(directory_ + "/");
  throw tier_file_error(directory_, {tier_file_operation::open, fault_of(code), code, 0, 0, 0, std::move(more)}, at);
}

template <tier_file_calls Calls>
tier_file<Calls>::tier_file(const std::string& directory, std::size_t bytes, std::size_t slot_count, file_access way,
                            where at)
    : file_(directory, bytes, at), bytes_(bytes) {
  if (slot_count == 0 || slot_count > most_slots)
    throw usage_error("a tier file has from 1 to 1024 transfers under way, not " + std::to_string(slot_count), at);
  static_cast<file_medium&>(access_) = file_.medium();
  start(slot_count, way, at);
}

template <tier_file_calls Calls>
void tier_file<Calls>::start(std::size_t slot_count, file_access way, where at) {
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

template <tier_file_calls Calls>
[[noreturn]] void tier_file<Calls>::refuse_start(int code, const std::string& why, where at) const {
  throw tier_file_error(directory(), {tier_file_operation::start, tier_file_fault::system, code, 0, 0, 0, why}, at);
}

}  // namespace belay::inline BELAY_ABI
