// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A tier's file for those that read and write it whatever calls it is made of.
// IWYU pragma: private, include "belay/device/tier_file.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/tier_file/error.hpp"
#include "belay/device/tier_file/transfer.hpp"

namespace belay::inline BELAY_ABI {

/// Valid as long as the file lives; another file may be moved from it meanwhile.
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

}  // namespace belay::inline BELAY_ABI
