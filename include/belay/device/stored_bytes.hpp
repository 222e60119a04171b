// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where bytes live: in memory, or at a place of a tier's file. Whoever reads them need not know which.
//
//   belay::stored_bytes one{std::as_bytes(values)}, two{file.reference(), 8192, 700};
//   belay::file_staging staging(memory);         // file_staging::bytes of it
//   staging.copy(two, to);                       // 700 bytes at any address
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/host_access.hpp"
#include "belay/device/tier_file.hpp"

namespace belay::inline BELAY_ABI {

/// A reference: memory or file outlive it.
class stored_bytes {
 public:
  stored_bytes() = default;
  stored_bytes(std::span<const std::byte> memory) noexcept  // NOLINT(google-explicit-constructor): it is where they are
      : memory_(memory.data()), bytes_(memory.size()) {}
  /// Bytes in memory that the host reads through `access`, or addresses itself where that is null.
  stored_bytes(std::span<const std::byte> memory, const host_access* access) noexcept
      : memory_(memory.data()), access_(access), bytes_(memory.size()) {}
  /// A part of a file, or of memory.
  stored_bytes(tier_file_reference file, std::uint64_t offset, std::size_t bytes) noexcept
      : file_(file), offset_(offset), bytes_(bytes) {}

  /// Bytes; whether they lie in a file.
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }
  [[nodiscard]] bool in_file() const noexcept { return static_cast<bool>(file_); }
  /// Of bytes in memory, which the host addresses where `access()` is null.
  [[nodiscard]] std::span<const std::byte> memory() const noexcept { return {memory_, bytes_}; }
  [[nodiscard]] const host_access* access() const noexcept { return access_; }
  /// Of bytes in a file.
  [[nodiscard]] const tier_file_reference& file() const noexcept { return file_; }
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }

  /// So many bytes from `first` on.
  [[nodiscard]] stored_bytes part(std::size_t first, std::size_t count) const noexcept {
    if (in_file()) return {file_, offset_ + first, count};
    return {std::span<const std::byte>(memory_ + first, count), access_};
  }
  /// Takes `next` in where it begins in the file at the end of this.
  [[nodiscard]] bool join(const stored_bytes& next) noexcept {
    if (!in_file() || !(file_ == next.file_) || offset_ + bytes_ != next.offset_) return false;
    bytes_ += next.bytes_;
    return true;
  }

 private:
  const std::byte* memory_ = nullptr;
  const host_access* access_ = nullptr;
  tier_file_reference file_;
  std::uint64_t offset_ = 0;
  std::size_t bytes_ = 0;
};

/// Reads any bytes of tiers' files through aligned memory: while one part is copied to where it goes, the next is on
/// its way. One thread at a time.
class file_staging {
 public:
  /// The largest block of a file that it reads, and the bytes of one buffer.
  static constexpr std::size_t largest_alignment = std::size_t{64} << 10U;
  static constexpr std::size_t buffer_bytes = std::size_t{256} << 10U;
  static constexpr std::size_t bytes = 2 * buffer_bytes + largest_alignment;  // of memory, wherever that begins

  /// None, for those who read no files.
  file_staging() = default;
  explicit file_staging(std::span<std::byte> memory) noexcept;

  /// Copies `from` to `to`, which has room for it; what lies on a device, to memory that it addresses. Throws
  /// tier_file_error, usage_error for a file of larger blocks, and what a device has failed with.
  void copy(const stored_bytes& from, std::byte* to, where at = where::current());

 private:
  void read(const tier_file_reference& file, std::uint64_t offset, std::span<std::byte> to, where at);

  std::byte* buffers_ = nullptr;
};

/// Calls `visit(stored_bytes)` for bytes `begin` to `begin + count` of `all`, one after another.
template <class Visit>
void each_stored_part(std::span<const stored_bytes> all, std::size_t begin, std::size_t count, Visit&& visit) {
  for (const stored_bytes& each : all) {
    if (count == 0) return;
    if (begin >= each.size()) {
      begin -= each.size();
      continue;
    }
    const std::size_t taken = lesser_of(each.size() - begin, count);
    visit(each.part(std::exchange(begin, 0), taken));
    count -= taken;
  }
}

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/device/stored_bytes.ipp"  // IWYU pragma: export
#endif
