// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The tokens of a safetensors header: strings, plain integers, punctuation. A cursor over the bytes of the header. Its
// caller knows the grammar, so nothing nests and nothing recurses.
// IWYU pragma: private, include "belay/train/safetensors.hpp"
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace safetensors {

class header_scanner {
 public:
  /// The text begins at byte `first` of the file at `path`.
  header_scanner(std::string_view text, const std::string& path, where at, std::size_t first = 8)
      : text_(text), path_(path), at_(at), first_(first) {}

  /// Throws file_error for byte `position` of the text.
  [[noreturn]] void fail(std::size_t position, const std::string& reason) const {
    throw file_error(path_, position + first_, reason, at_);
  }

  [[nodiscard]] std::size_t size() const noexcept { return text_.size(); }
  [[nodiscard]] char peek() const { return cursor_ < text_.size() ? text_[cursor_] : '\0'; }

  /// Skips space and returns the position of the next token.
  std::size_t next();
  [[nodiscard]] bool next_is(char wanted);
  [[nodiscard]] bool take_if(char wanted);
  void take(char wanted);

  /// Whether a null came next, which is taken.
  [[nodiscard]] bool take_null();

  /// Throws where anything but space follows.
  void finish();

  /// An integer from 0 to `largest`, without sign, fraction, exponent or leading zeros.
  [[nodiscard]] std::uint64_t integer(std::uint64_t largest);

  /// A number that a double holds.
  [[nodiscard]] double number();

  /// A string of at most `most` bytes, its escapes resolved. `what` names it in errors.
  [[nodiscard]] std::string string(std::uint64_t most, const char* what);

  /// Skips a value that nobody reads, of objects, arrays, strings, numbers and literals nested at most 16 deep.
  void skip_value(int depth = 0);

  /// Throws where the text is not valid UTF-8 (shortest forms, no surrogates, nothing beyond U+10FFFF).
  void check_utf8() const;

 private:
  static constexpr std::uint64_t largest_text = 1U << 16U;

  // What numbers and literals are written with.
  static bool is_plain(char c) noexcept {
    return is_digit(c) || (c >= 'a' && c <= 'z') || c == 'E' || c == '+' || c == '-' || c == '.';
  }
  static bool is_space(char c) noexcept { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
  static bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

  void escape(std::string& result);

  [[nodiscard]] unsigned hex(std::size_t begin);

  static void append_utf8(std::string& result, unsigned code);

  std::string_view text_;
  const std::string& path_;
  where at_;
  std::size_t first_;
  std::size_t cursor_ = 0;
};

}  // namespace safetensors
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/train/safetensors/scanner.ipp"  // IWYU pragma: export
#endif
