// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The tokens of a header.
#pragma once

#include "belay/train/safetensors/scanner.hpp"

namespace belay::inline BELAY_ABI {
namespace safetensors {

BELAY_DECL std::size_t header_scanner::next() {
  while (cursor_ < text_.size() && is_space(text_[cursor_])) ++cursor_;
  return cursor_;
}

BELAY_DECL bool header_scanner::next_is(char wanted) {
  next();
  return cursor_ < text_.size() && text_[cursor_] == wanted;
}

BELAY_DECL bool header_scanner::take_if(char wanted) {
  if (!next_is(wanted)) return false;
  ++cursor_;
  return true;
}

BELAY_DECL void header_scanner::take(char wanted) {
  if (take_if(wanted)) return;
  if (cursor_ == text_.size()) fail(cursor_, std::string("the header ends where ") + wanted + " was expected");
  fail(cursor_, std::string("expected ") + wanted);
}

BELAY_DECL bool header_scanner::take_null() {
  constexpr std::string_view null = "null";
  if (text_.substr(next(), null.size()) != null) return false;
  cursor_ += null.size();
  return true;
}

BELAY_DECL void header_scanner::finish() {
  next();
  if (cursor_ != text_.size()) fail(cursor_, "something follows the header's closing }");
}

BELAY_DECL std::uint64_t header_scanner::integer(std::uint64_t largest) {
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

BELAY_DECL double header_scanner::number() {
  const std::size_t begin = next();
  while (cursor_ < text_.size() && is_plain(text_[cursor_])) ++cursor_;
  const std::string_view digits = text_.substr(begin, cursor_ - begin);
  double value = 0;
  const auto [end, wrong] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (wrong != std::errc{} || end != digits.data() + digits.size() || !is_finite(value))
    fail(begin, "expected a number");
  return value;
}

BELAY_DECL std::string header_scanner::string(std::uint64_t most, const char* what) {
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

BELAY_DECL void header_scanner::skip_value(int depth) {
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

BELAY_DECL void header_scanner::check_utf8() const {
  for (std::size_t i = 0; i < text_.size();) {
    const std::size_t length = utf8_length(text_.substr(i));
    if (length == 0) fail(i, "the header is not valid UTF-8");
    i += length;
  }
}

BELAY_DECL void header_scanner::escape(std::string& result) {
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

BELAY_DECL auto header_scanner::hex(std::size_t begin) -> unsigned {
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

BELAY_DECL void header_scanner::append_utf8(std::string& result, unsigned code) {
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

}  // namespace safetensors
}  // namespace belay::inline BELAY_ABI
