// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One JSON object as a line, written into memory that the caller gives. It allocates nothing. Numbers read back bit
// for bit, and values that JSON has no number for become null. The caller names the members; commas, quotes and
// brackets are added.
//
//   char room[4096];
//   belay::json_line line(room);
//   line.field("step", 1).field("loss", 2.5).array("live", bytes);
//   line.open_object("peak").field("device", 64).close();
//   file.write(line.finish());  // {"step":1,"loss":2.5,"live":[1,2],"peak":{"device":64}} and a newline
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/json_text.hpp"
#include "belay/core/where.hpp"
#include "belay/report/text_buffer.hpp"

namespace belay::inline BELAY_ABI {

/// A number or a truth value.
template <class T>
concept json_scalar = std::integral<T> || std::floating_point<T>;

/// Builds one line after another in the same memory.
class json_line {
 public:
  static constexpr int deepest = 16;  // nested objects and arrays

  /// Writes into that memory, which outlives it.
  explicit json_line(std::span<char> room) noexcept : text_(room) { begin(); }

  /// Forgets the line and begins the next one.
  void begin() noexcept {
    text_.clear();
    depth_ = 0;
    first_ = true;
    text_.put('{');
  }

  /// A member of the object that is open.
  template <json_scalar T>
  json_line& field(std::string_view key, const T& value) {
    member(key);
    scalar(value);
    return *this;
  }
  json_line& field(std::string_view key, std::string_view text) {
    member(key);
    scalar(text);
    return *this;
  }

  /// A member whose value is unknown or does not exist.
  json_line& null_field(std::string_view key) {
    member(key);
    text_.put("null");
    return *this;
  }

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
  json_line& element_of_array(std::string_view text) {
    comma();
    scalar(text);
    return *this;
  }
  template <class T>
  json_line& row(std::span<const T> values) {
    comma();
    elements(values);
    return *this;
  }

  /// Opens an object or an array as a member. close() ends the innermost one.
  json_line& open_object(std::string_view key) { return open(key, '{', '}'); }
  json_line& open_array(std::string_view key) { return open(key, '[', ']'); }
  json_line& close() {
    if (depth_ == 0) throw usage_error("a JSON line closes what it did not open", where::current());
    text_.put(closers_[--depth_]);
    first_ = false;
    return *this;
  }

  /// The whole line with its newline. A usage_error where something is still open, or the memory was too small.
  [[nodiscard]] std::string_view finish(where at = where::current()) {
    if (depth_ != 0) throw usage_error("a JSON line ends with an open object or array", at);
    text_.put("}\n");
    return text_.text(at);
  }

 private:
  void comma() noexcept {
    if (!first_) text_.put(',');
    first_ = false;
  }
  void member(std::string_view key) noexcept {
    comma();
    scalar(key);
    text_.put(':');
  }

  json_line& open(std::string_view key, char opener, char closer) {
    if (depth_ == deepest) throw usage_error("a JSON line nests deeper than 16", where::current());
    member(key);
    text_.put(opener);
    closers_[depth_++] = closer;
    first_ = true;
    return *this;
  }

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
