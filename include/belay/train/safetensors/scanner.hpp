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
#include "belay/core/utf8.hpp"
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
  std::size_t next() {
    while (cursor_ < text_.size() && is_space(text_[cursor_])) ++cursor_;
    return cursor_;
  }
  [[nodiscard]] bool next_is(char wanted) {
    next();
    return cursor_ < text_.size() && text_[cursor_] == wanted;
  }
  [[nodiscard]] bool take_if(char wanted) {
    if (!next_is(wanted)) return false;
    ++cursor_;
    return true;
  }
  void take(char wanted) {
    if (take_if(wanted)) return;
    if (cursor_ == text_.size()) fail(cursor_, std::string("the header ends where ") + wanted + " was expected");
    fail(cursor_, std::string("expected ") + wanted);
  }

  /// Whether a null came next, which is taken.
  [[nodiscard]] bool take_null() {
    constexpr std::string_view null = "null";
    if (text_.substr(next(), null.size()) != null) return false;
    cursor_ += null.size();
    return true;
  }

  /// Throws where anything but space follows.
  void finish() {
    next();
    if (cursor_ != text_.size()) fail(cursor_, "something follows the header's closing }");
  }

  /// An integer from 0 to `largest`, without sign, fraction, exponent or leading zeros.
  [[nodiscard]] std::uint64_t integer(std::uint64_t largest) {
    const std::size_t begin = next();
    std::uint64_t value = 0;
    while (cursor_ < text_.size() && is_digit(text_[cursor_])) {
      value = value * 10 + static_cast<std::uint64_t>(text_[cursor_] - '0');
      if (value > largest) fail(begin, "a number is larger than " + std::to_string(largest));
      ++cursor_;
    }
    if (cursor_ == begin) fail(begin, "expected an integer that is not negative");
    if (text_[begin] == '0' && cursor_ - begin > 1) fail(begin, "a number has leading zeros");
    if (cursor_ < text_.size() && (peek() == '.' || peek() == 'e' || peek() == 'E')) {
      fail(begin, "a number is not an integer");
    }
    return value;
  }

  /// A number that a double holds.
  [[nodiscard]] double number() {
    const std::size_t begin = next();
    while (cursor_ < text_.size() && is_plain(text_[cursor_])) ++cursor_;
    const std::string_view digits = text_.substr(begin, cursor_ - begin);
    double value = 0;
    const auto [end, wrong] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (wrong != std::errc{} || end != digits.data() + digits.size() || !is_finite(value))
      fail(begin, "expected a number");
    return value;
  }

  /// A string of at most `most` bytes, its escapes resolved. `what` names it in errors.
  [[nodiscard]] std::string string(std::uint64_t most, const char* what) {
    const std::size_t begin = next();
    if (!take_if('"')) fail(begin, std::string("expected ") + what + " in quotes");
    std::string result;
    for (;;) {
      if (cursor_ == text_.size()) fail(begin, std::string(what) + " has no closing quote");
      const char c = text_[cursor_];
      if (static_cast<unsigned char>(c) < 0x20) fail(cursor_, std::string(what) + " holds a control character");
      ++cursor_;
      if (c == '"') return result;
      if (c == '\\') {
        escape(result);
      } else {
        result.push_back(c);
      }
      if (result.size() > most) fail(begin, std::string(what) + " is longer than " + std::to_string(most) + " bytes");
    }
  }

  /// Skips a value that nobody reads, of objects, arrays, strings, numbers and literals nested at most 16 deep.
  void skip_value(int depth = 0) {
    const std::size_t begin = next();
    if (depth > 16) fail(begin, "a value is nested too deep");
    if (next_is('"')) return static_cast<void>(string(largest_text, "a string"));
    if (const bool object = next_is('{'); object || next_is('[')) {
      const char close = object ? '}' : ']';
      ++cursor_;
      for (bool first = true; !take_if(close); first = false) {
        if (!first) take(',');
        if (object) {
          static_cast<void>(string(largest_text, "a field"));
          take(':');
        }
        skip_value(depth + 1);
      }
      return;
    }
    while (cursor_ < text_.size() && is_plain(text_[cursor_])) ++cursor_;
    if (cursor_ == begin) fail(begin, "expected a value");
  }

  /// Throws where the text is not valid UTF-8 (shortest forms, no surrogates, nothing beyond U+10FFFF).
  void check_utf8() const {
    for (std::size_t i = 0; i < text_.size();) {
      const std::size_t length = utf8_length(text_.substr(i));
      if (length == 0) fail(i, "the header is not valid UTF-8");
      i += length;
    }
  }

 private:
  static constexpr std::uint64_t largest_text = 1U << 16U;

  // What numbers and literals are written with.
  static bool is_plain(char c) noexcept {
    return is_digit(c) || (c >= 'a' && c <= 'z') || c == 'E' || c == '+' || c == '-' || c == '.';
  }
  static bool is_space(char c) noexcept { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
  static bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

  void escape(std::string& result) {
    const std::size_t begin = cursor_ - 1;
    if (cursor_ == text_.size()) fail(begin, "the header ends inside an escape");
    const char c = text_[cursor_++];
    switch (c) {
      case '"':
      case '\\':
      case '/': result.push_back(c); return;
      case 'b': result.push_back('\b'); return;
      case 'f': result.push_back('\f'); return;
      case 'n': result.push_back('\n'); return;
      case 'r': result.push_back('\r'); return;
      case 't': result.push_back('\t'); return;
      case 'u': break;
      default: fail(begin, "an unknown escape");
    }
    unsigned code = hex(begin);
    if (code >= 0xDC00 && code <= 0xDFFF) fail(begin, "half of a surrogate pair");
    if (code >= 0xD800 && code <= 0xDBFF) {
      if (text_.substr(cursor_, 2) != "\\u") fail(begin, "half of a surrogate pair");
      cursor_ += 2;
      const unsigned low = hex(begin);
      if (low < 0xDC00 || low > 0xDFFF) fail(begin, "half of a surrogate pair");
      code = 0x10000 + ((code - 0xD800) << 10U) + (low - 0xDC00);
    }
    append_utf8(result, code);
  }

  [[nodiscard]] unsigned hex(std::size_t begin) {
    unsigned value = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = peek();
      unsigned digit = 0;
      if (is_digit(c)) {
        digit = static_cast<unsigned>(c - '0');
      } else if (c >= 'a' && c <= 'f') {
        digit = static_cast<unsigned>(c - 'a') + 10;
      } else if (c >= 'A' && c <= 'F') {
        digit = static_cast<unsigned>(c - 'A') + 10;
      } else {
        fail(begin, "an escape needs four hexadecimal digits");
      }
      value = value * 16 + digit;
      ++cursor_;
    }
    return value;
  }

  static void append_utf8(std::string& result, unsigned code) {
    const auto put = [&result](unsigned value) {
      result.push_back(static_cast<char>(static_cast<unsigned char>(value)));
    };
    if (code < 0x80) {
      put(code);
    } else if (code < 0x800) {
      put(0xC0U | code >> 6U);
      put(0x80U | (code & 0x3FU));
    } else if (code < 0x10000) {
      put(0xE0U | code >> 12U);
      put(0x80U | (code >> 6U & 0x3FU));
      put(0x80U | (code & 0x3FU));
    } else {
      put(0xF0U | code >> 18U);
      put(0x80U | (code >> 12U & 0x3FU));
      put(0x80U | (code >> 6U & 0x3FU));
      put(0x80U | (code & 0x3FU));
    }
  }

  std::string_view text_;
  const std::string& path_;
  where at_;
  std::size_t first_;
  std::size_t cursor_ = 0;
};

}  // namespace safetensors
}  // namespace belay::inline BELAY_ABI
