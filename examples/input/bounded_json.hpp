// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// JSON from outside. nlohmann::json copies, compares and prints values by recursion, so their nesting is limited while
// they are parsed; of a member that an object has twice it would keep the last, so that is refused. Errors name the
// field and the byte.
#pragma once

#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"

namespace input {

/// Nested objects and arrays; the files of this repository's programs have seven levels.
inline constexpr std::size_t deepest_json = 64;

/// A value as JSON for a message, its beginning where it is long.
template <class Json>
[[nodiscard]] std::string shown(const Json& value) {
  return belay::printable_start(value.dump(), 60);
}

/// Reads one text. `Json` is a kind of nlohmann::basic_json.
template <class Json>
class json_parser {
 public:
  /// `path` names the text in errors, `otherwise` says there what it is instead.
  json_parser(std::string path, std::string_view text, std::string otherwise = "is no JSON")
      : path_(std::move(path)), text_(text), otherwise_(std::move(otherwise)) {}

  /// The value. What is no JSON, nests too deep, or has a member of an object twice, is a belay::file_error.
  [[nodiscard]] Json parse() {
    const auto follow = [&](int, event what, Json& value) { return step(what, value); };
    const char* const begin = text_.data();
    position_ = begin;
    try {
      return Json::parse(counting{begin, &position_}, counting{begin + text_.size(), &position_}, follow);
    } catch (const typename Json::out_of_range&) {
      const bare found = bare_at_position();
      refuse(found.begin,
             field() + " is " + belay::printable_start(found.text, 40) + ", which is beyond what a number can hold");
    } catch (const typename Json::parse_error& error) {
      refuse_syntax(error);
    }
  }

  /// At which byte each object and array begins, in the order of the text.
  [[nodiscard]] const std::vector<std::size_t>& begins() const noexcept { return begins_; }

 private:
  using event = typename Json::parse_event_t;

  // An input iterator that tells how far the parser has read.
  struct counting {
    using iterator_category = std::input_iterator_tag;
    using value_type = char;
    using difference_type = std::ptrdiff_t;
    using pointer = const char*;
    using reference = const char&;

    const char* at;
    const char** position;

    reference operator*() const { return *at; }
    counting& operator++() {
      *position = ++at;
      return *this;
    }
    counting operator++(int) {
      const counting before = *this;
      ++*this;
      return before;
    }
    friend bool operator==(const counting& a, const counting& b) { return a.at == b.at; }
    friend bool operator!=(const counting& a, const counting& b) { return a.at != b.at; }
  };

  // A number or word without quotes.
  struct bare {
    std::size_t begin;
    std::string_view text;
  };

  [[nodiscard]] std::size_t position() const { return static_cast<std::size_t>(position_ - text_.data()); }

  [[noreturn]] void refuse(std::size_t byte, const std::string& why) const {
    throw belay::file_error(path_, byte, why);
  }

  [[noreturn]] void refuse_syntax(const typename Json::parse_error& error) const {
    const std::size_t byte = error.byte > 0 ? error.byte - 1 : 0;
    if (byte >= text_.size()) refuse(byte, "is cut off: it ends in the middle");
    const bare found = bare_at_position();
    if (!keys_.empty() && (awaits_value_ || keys_.back() == array_key) && !found.text.empty() &&
        found.text.front() != '"') {
      refuse(found.begin, otherwise_ + ": " + field() + " is " + belay::printable_start(found.text, 40));
    }
    const std::string_view what = error.what();
    const std::size_t words = what.find(": ");
    refuse(byte, otherwise_ + ": " + std::string(words == std::string_view::npos ? what : what.substr(words + 2)));
  }

  bool step(event what, const Json& value) {
    awaits_value_ = what == event::key;
    switch (what) {
      case event::object_start:
      case event::array_start:
        if (keys_.size() == deepest_json) {
          refuse(position() - 1, "nests deeper than " + std::to_string(deepest_json) + " levels");
        }
        begins_.push_back(position() - 1);
        keys_.emplace_back(what == event::array_start ? array_key : "");
        members_.emplace_back();
        break;
      case event::object_end:
      case event::array_end:
        keys_.pop_back();
        members_.pop_back();
        break;
      case event::key:
        keys_.back() = value.template get_ref<const std::string&>();
        if (!members_.back().insert(keys_.back()).second) refuse(position() - 1, field() + " is there twice");
        break;
      case event::value: break;
    }
    return true;
  }

  // What is being read: "rope_parameters.rope_theta".
  [[nodiscard]] std::string field() const {
    std::string out;
    for (const std::string& key : keys_) {
      out += (out.empty() || key == array_key ? "" : ".") + belay::printable_start(key, 60);
    }
    return out.empty() ? "the value" : out;
  }

  // Where the parser stopped, or just before.
  [[nodiscard]] bare bare_at_position() const {
    constexpr std::string_view between = " \t\r\n,:[]{}";
    const auto outside = [&](std::size_t i) { return between.find(text_[i]) != std::string_view::npos; };
    std::size_t end = position();
    while (end > 0 && outside(end - 1)) --end;
    std::size_t begin = end;
    while (begin > 0 && !outside(begin - 1)) --begin;
    while (end < text_.size() && !outside(end)) ++end;
    return {begin, text_.substr(begin, end - begin)};
  }

  static constexpr const char* array_key = "[]";

  std::string path_;
  std::string_view text_;
  std::string otherwise_;
  const char* position_ = nullptr;
  std::vector<std::size_t> begins_;
  std::vector<std::string> keys_;               // the current member of each open object
  std::vector<std::set<std::string>> members_;  // those that each has had
  bool awaits_value_ = false;
};

}  // namespace input
