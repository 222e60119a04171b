// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Hashes to compare data by: between two points in time on one rank, or between ranks. They find accidents, not
// attacks.
//
//   const std::uint64_t before = belay::content_hash().add_bytes(data, size).value();
//   train(data);
//   if (belay::content_hash().add_bytes(data, size).value() != before) report_change();
//   const std::uint64_t key = belay::fnv1a().add_text("wte").add(seed).value();
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// How the checksum of this polynomial is computed; `best` asks the machine.
enum class crc32c_method : std::uint8_t { best, instruction, tables };

/// CRC-32C (Castagnoli, the one of iSCSI and ext4): what a file's chunks are verified by. With the instruction of x86
/// where the machine has it, else eight bytes a step from tables, whose values are the same.
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

/// FNV-1a of bytes, and of whole words. Its values stand in names of files and decide the first values of parameters,
/// so they never change.
class fnv1a {
 public:
  /// The constants of FNV-1a in 64 bits.
  static constexpr std::uint64_t offset_basis = 0xcbf29ce484222325U;
  static constexpr std::uint64_t prime = 0x100000001b3U;

  constexpr fnv1a() noexcept = default;
  /// Continues from `hash`.
  explicit constexpr fnv1a(std::uint64_t hash) noexcept : hash_(hash) {}

  /// `word` as one unit, not as its eight bytes.
  constexpr fnv1a& add(std::uint64_t word) noexcept {
    hash_ = (hash_ ^ word) * prime;
    return *this;
  }
  constexpr fnv1a& add_text(std::string_view text) noexcept {
    for (const char c : text) add(static_cast<unsigned char>(c));
    return *this;
  }

  /// The hash of what was added.
  [[nodiscard]] constexpr std::uint64_t value() const noexcept { return hash_; }

 private:
  std::uint64_t hash_ = offset_basis;
};

/// 64 bits of what was added, in order, for large data: eight bytes a step. A change of one word always changes the
/// value; changes of several words do so with overwhelming probability.
class content_hash {
 public:
  /// Adds a word; another order gives another hash.
  constexpr content_hash& add(std::uint64_t word) noexcept {
    hash_ = (hash_ ^ word) * 0x9e3779b97f4a7c15U;
    hash_ ^= hash_ >> 32;  // else the highest bits of two words, such as signs, could cancel
    return *this;
  }
  /// `bytes` bytes at `data`, and their number.
  content_hash& add_bytes(const void* data, std::size_t bytes) noexcept {
    const auto* next = static_cast<const unsigned char*>(data);
    for (std::size_t left = bytes; left > 0;) {
      std::uint64_t word = 0;
      const std::size_t taken = left < sizeof(word) ? left : sizeof(word);
      std::memcpy(&word, next, taken);
      add(word);
      next += taken;
      left -= taken;
    }
    return add(bytes);
  }
  content_hash& add_text(std::string_view text) noexcept { return add_bytes(text.data(), text.size()); }

  /// The hash of what was added.
  [[nodiscard]] constexpr std::uint64_t value() const noexcept { return hash_; }

 private:
  std::uint64_t hash_ = fnv1a::offset_basis;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/core/hash.ipp"  // IWYU pragma: export
#endif
