// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Text that is put together in memory of fixed size, without allocation and independently of the locale. Text that
// does not fit is counted, so that the error says how much memory is needed.
//
//   char room[64];
//   belay::text_buffer line(room);
//   line.put("step ").put(12).put("  loss ").put_fixed(loss, 4);
//   const std::string_view text = line.text();
#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

class text_buffer {
 public:
  /// Writes into that memory, which outlives it.
  explicit text_buffer(std::span<char> room) noexcept : room_(room) {}

  /// Empties it; characters so far.
  void clear() noexcept { size_ = 0; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

  /// The text so far. A usage_error where the memory was too small. Valid until the next put or clear.
  [[nodiscard]] std::string_view text(where at = where::current()) const {
    if (size_ > room_.size()) {
      throw usage_error(
          "a line of " + std::to_string(size_) + " bytes was put into room for " + std::to_string(room_.size()), at);
    }
    return {room_.data(), size_};
  }

  /// Appends; what is beyond the room is counted and not written.
  text_buffer& put(char c) noexcept { return put(std::string_view(&c, 1)); }
  text_buffer& put(std::string_view text) noexcept {
    if (size_ <= room_.size() && text.size() <= room_.size() - size_) {
      std::memcpy(room_.data() + size_, text.data(), text.size());
    }
    size_ += text.size();
    return *this;
  }

  /// An integer in decimal.
  template <std::integral T>
  requires(!std::same_as<T, bool> && !std::same_as<T, char>) text_buffer& put(T value) noexcept {
    const auto bits = static_cast<std::uint64_t>(value);
    const bool negative = std::signed_integral<T> && bits >> 63U != 0;
    return put_decimal(negative, negative ? 0 - bits : bits);
  }

  /// The shortest text that reads back as the same number.
  template <std::floating_point T>
  text_buffer& put(T value) noexcept {
    char digits[40];
    return put(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  }

  /// A number with `places` digits after the point, or with an exponent where that would be too long.
  text_buffer& put_fixed(double value, int places) noexcept {
    char digits[64];
    auto end = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed, places);
    if (end.ec != std::errc{}) {
      end = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific, places);
    }
    return put(digits, end.ptr);
  }

 private:
  text_buffer& put_decimal(bool negative, std::uint64_t rest) noexcept {
    char digits[24];
    char* const end = digits + sizeof digits;
    char* begin = end;
    do {
      *--begin = static_cast<char>('0' + rest % 10);
      rest /= 10;
    } while (rest != 0);
    if (negative) *--begin = '-';
    return put(begin, end);
  }
  text_buffer& put(const char* begin, const char* end) noexcept {
    return put(std::string_view(begin, static_cast<std::size_t>(end - begin)));
  }

  std::span<char> room_;
  std::size_t size_ = 0;
};

}  // namespace belay::inline BELAY_ABI
