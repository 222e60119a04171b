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
#include <string_view>

#include "belay/core/config.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/printable.hpp"
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
  [[nodiscard]] std::string_view text(where at = where::current()) const;

  /// Appends; what is beyond the room is counted and not written.
  text_buffer& put(char c) noexcept { return put(std::string_view(&c, 1)); }
  text_buffer& put(std::string_view text) noexcept;

  /// An integer in decimal.
  template <std::integral T>
    requires(!std::same_as<T, bool> && !std::same_as<T, char>)
  text_buffer& put(T value) noexcept {
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
  text_buffer& put_fixed(double value, int places) noexcept;

 private:
  text_buffer& put_decimal(bool negative, std::uint64_t rest) noexcept;
  text_buffer& put(const char* begin, const char* end) noexcept;

  std::span<char> room_;
  std::size_t size_ = 0;
};

/// A number or a truth value.
template <class T>
concept json_scalar = std::integral<T> || std::floating_point<T>;

/// Builds one line after another in the same memory.
/// One JSON object as a line, written into memory that the caller gives. It allocates nothing. Numbers read back bit
/// for bit, and values that JSON has no number for become null. The caller names the members; commas, quotes and
/// brackets are added.
class json_line {
 public:
  static constexpr int deepest = 16;  // nested objects and arrays

  /// Writes into that memory, which outlives it.
  explicit json_line(std::span<char> room) noexcept : text_(room) { begin(); }

  /// Forgets the line and begins the next one.
  void begin() noexcept;

  /// A member of the object that is open.
  template <json_scalar T>
  json_line& field(std::string_view key, const T& value) {
    member(key);
    scalar(value);
    return *this;
  }
  json_line& field(std::string_view key, std::string_view text);

  /// A member whose value is unknown or does not exist.
  json_line& null_field(std::string_view key);

  /// A member that is an array of all `values`.
  template <class T>
  json_line& array(std::string_view key, std::span<const T> values) {
    member(key);
    elements(values);
    return *this;
  }

  /// An element of the array that is open: a value, or an array of all `values`.
  template <json_scalar T>
  json_line& element_of_array(const T& value) {
    comma();
    scalar(value);
    return *this;
  }
  json_line& element_of_array(std::string_view text);
  template <class T>
  json_line& row(std::span<const T> values) {
    comma();
    elements(values);
    return *this;
  }

  /// Opens an object or an array as a member. close() ends the innermost one.
  json_line& open_object(std::string_view key) { return open(key, '{', '}'); }
  json_line& open_array(std::string_view key) { return open(key, '[', ']'); }
  json_line& close();

  /// The whole line with its newline. A usage_error where something is still open, or the memory was too small.
  [[nodiscard]] std::string_view finish(where at = where::current());

 private:
  void comma() noexcept;
  void member(std::string_view key) noexcept;

  json_line& open(std::string_view key, char opener, char closer);

  template <class T>
  void elements(std::span<const T> values) noexcept {
    text_.put('[');
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i != 0) text_.put(',');
      scalar(values[i]);
    }
    text_.put(']');
  }

  template <json_scalar T>
  void scalar(const T& value) noexcept {
    if constexpr (std::same_as<T, bool>) {
      text_.put(value ? "true" : "false");
    } else if constexpr (std::integral<T>) {
      text_.put(value);
    } else if (is_finite(value)) {
      text_.put(value);
    } else {  // infinite or not a number
      text_.put("null");
    }
  }

  void scalar(std::string_view text) noexcept {
    put_json(text, [this](std::string_view piece) { text_.put(piece); });
  }

  text_buffer text_;
  char closers_[deepest] = {};
  int depth_ = 0;
  bool first_ = true;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/report/text_buffer.ipp"  // IWYU pragma: export
#endif
