// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The steps of CRC-32C: with the instruction, and with tables.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "belay/core/hash.hpp"

namespace belay::inline BELAY_ABI {

/// Continue a state, inverted as it is kept, with bytes.
struct crc32c_steps {
  static constexpr std::uint32_t polynomial = 0x82f63b78U;  // reflected

  // Entry [k][b]: of byte b with k zero bytes after it.
  static constexpr std::array<std::array<std::uint32_t, 256>, 8> tables = [] {
    std::array<std::array<std::uint32_t, 256>, 8> out{};
    for (std::uint32_t b = 0; b < 256; ++b) {
      std::uint32_t word = b;
      for (int bit = 0; bit < 8; ++bit) word = word >> 1U ^ ((word & 1U) != 0 ? polynomial : 0U);
      out[0][b] = word;
    }
    for (std::size_t k = 1; k < out.size(); ++k)
      for (std::size_t b = 0; b < 256; ++b) out[k][b] = out[k - 1][b] >> 8U ^ out[0][out[k - 1][b] & 0xffU];
    return out;
  }();

  [[nodiscard]] static std::uint64_t word_at(const std::byte* data) noexcept {
    std::uint64_t word = 0;
    std::memcpy(&word, data, sizeof word);
    return word;
  }
  [[nodiscard]] static std::uint32_t one_byte(std::uint32_t state, std::byte next) noexcept {
    return tables[0][(state ^ std::to_integer<std::uint32_t>(next)) & 0xffU] ^ state >> 8U;
  }

  [[nodiscard]] static std::uint32_t with_tables(std::uint32_t state, std::span<const std::byte> bytes) noexcept {
    std::size_t i = 0;
    for (; i + 8 <= bytes.size(); i += 8) {
      const std::uint64_t word = word_at(bytes.data() + i) ^ state;
      state = 0;
      for (std::size_t k = 0; k < 8; ++k) state ^= tables[7 - k][word >> 8U * k & 0xffU];
    }
    for (; i < bytes.size(); ++i) state = one_byte(state, bytes[i]);
    return state;
  }

#if defined(__x86_64__)
  [[nodiscard, gnu::target("sse4.2")]] static std::uint32_t with_instruction(
      std::uint32_t state, std::span<const std::byte> bytes) noexcept {
    std::uint64_t word = state;
    std::size_t i = 0;
    for (; i + 8 <= bytes.size(); i += 8) word = __builtin_ia32_crc32di(word, word_at(bytes.data() + i));
    auto out = static_cast<std::uint32_t>(word);
    for (; i < bytes.size(); ++i) out = one_byte(out, bytes[i]);
    return out;
  }
#else
  [[nodiscard]] static std::uint32_t with_instruction(std::uint32_t state, std::span<const std::byte> bytes) noexcept {
    return with_tables(state, bytes);
  }
#endif
};

BELAY_DECL crc32c& crc32c::add(std::span<const std::byte> bytes) noexcept {
  state_ = by_instruction_ ? crc32c_steps::with_instruction(state_, bytes) : crc32c_steps::with_tables(state_, bytes);
  return *this;
}

}  // namespace belay::inline BELAY_ABI
