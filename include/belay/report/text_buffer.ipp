// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Numbers as text in a buffer of fixed size.
#pragma once

#include <string>
#include <system_error>

#include "belay/core/error.hpp"
#include "belay/report/text_buffer.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL std::string_view text_buffer::text(where at) const {
  if (size_ > room_.size()) {
    throw usage_error(
        "a line of " + std::to_string(size_) + " bytes was put into room for " + std::to_string(room_.size()), at);
  }
  return {room_.data(), size_};
}

BELAY_DECL text_buffer& text_buffer::put(std::string_view text) noexcept {
  if (size_ <= room_.size() && text.size() <= room_.size() - size_) {
    std::memcpy(room_.data() + size_, text.data(), text.size());
  }
  size_ += text.size();
  return *this;
}

BELAY_DECL text_buffer& text_buffer::put_fixed(double value, int places) noexcept {
  char digits[64];
  auto end = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed, places);
  if (end.ec != std::errc{}) {
    end = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific, places);
  }
  return put(digits, end.ptr);
}

BELAY_DECL text_buffer& text_buffer::put_decimal(bool negative, std::uint64_t rest) noexcept {
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

BELAY_DECL text_buffer& text_buffer::put(const char* begin, const char* end) noexcept {
  return put(std::string_view(begin, static_cast<std::size_t>(end - begin)));
}

BELAY_DECL void json_line::begin() noexcept {
  text_.clear();
  depth_ = 0;
  first_ = true;
  text_.put('{');
}

BELAY_DECL json_line& json_line::field(std::string_view key, std::string_view text) {
  member(key);
  scalar(text);
  return *this;
}

BELAY_DECL json_line& json_line::null_field(std::string_view key) {
  member(key);
  text_.put("null");
  return *this;
}

BELAY_DECL json_line& json_line::element_of_array(std::string_view text) {
  comma();
  scalar(text);
  return *this;
}

BELAY_DECL json_line& json_line::close() {
  if (depth_ == 0) throw usage_error("a JSON line closes what it did not open", where::current());
  text_.put(closers_[--depth_]);
  first_ = false;
  return *this;
}

BELAY_DECL std::string_view json_line::finish(where at) {
  if (depth_ != 0) throw usage_error("a JSON line ends with an open object or array", at);
  text_.put("}\n");
  return text_.text(at);
}

BELAY_DECL void json_line::comma() noexcept {
  if (!first_) text_.put(',');
  first_ = false;
}

BELAY_DECL void json_line::member(std::string_view key) noexcept {
  comma();
  scalar(key);
  text_.put(':');
}

BELAY_DECL json_line& json_line::open(std::string_view key, char opener, char closer) {
  if (depth_ == deepest) throw usage_error("a JSON line nests deeper than 16", where::current());
  member(key);
  text_.put(opener);
  closers_[depth_++] = closer;
  first_ = true;
  return *this;
}

}  // namespace belay::inline BELAY_ABI
