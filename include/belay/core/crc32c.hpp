// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// CRC-32C (Castagnoli, the one of iSCSI and ext4): what a file's chunks are verified by. With the instruction of x86
// where the machine has it, else eight bytes a step from tables, whose values are the same.
//
//   belay::crc32c sum;
//   sum.add(first_part).add(second_part);
//   if (sum.value() != stored) report_damage();
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// How the checksum of this polynomial is computed; `best` asks the machine.
enum class crc32c_method : std::uint8_t { best, instruction, tables };

class crc32c {
 public:
  /// Throws nothing: where the machine has no such instruction, tables are taken.
  explicit crc32c(crc32c_method method = crc32c_method::best) noexcept
      : by_instruction_(method != crc32c_method::tables && has_instruction()) {}

  /// Continues with `bytes`.
  crc32c& add(std::span<const std::byte> bytes) noexcept;
  [[nodiscard]] std::uint32_t value() const noexcept { return ~state_; }

  /// Whether this processor has the instruction; without it a table is used, with the same result.
  [[nodiscard]] static bool has_instruction() noexcept {
#if defined(__x86_64__)
    return __builtin_cpu_supports("sse4.2") != 0;
#else
    return false;
#endif
  }

 private:
  std::uint32_t state_ = ~std::uint32_t{0};
  bool by_instruction_;
};

/// Of all of `bytes`.
[[nodiscard]] inline std::uint32_t crc32c_of(std::span<const std::byte> bytes) noexcept {
  return crc32c().add(bytes).value();
}

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/core/crc32c.ipp"  // IWYU pragma: export
#endif
