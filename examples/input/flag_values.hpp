// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Values of flags, for CLI11: what makes no sense is refused with what would.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/core/finite.hpp"

namespace input {

/// "pp=2,ep=4" as names and values. Throws belay::input_error, with the flag, where it is none.
[[nodiscard]] inline std::vector<std::pair<std::string, std::string>> key_values(const std::string& text,
                                                                                 const std::string& flag) {
  std::vector<std::pair<std::string, std::string>> out;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    const std::size_t equals = item.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == item.size()) {
      throw belay::input_error(flag + ": expected name=value, separated by commas, got '" + item + "'");
    }
    for (const auto& [name, value] : out) {
      if (name == item.substr(0, equals)) throw belay::input_error(flag + ": '" + name + "' is given twice");
    }
    out.emplace_back(item.substr(0, equals), item.substr(equals + 1));
    begin = end + 1;
  }
  return out;
}

/// A number larger than 0 with one of the units behind it; an empty name is that of a number without. Throws
/// belay::input_error, with the flag and an example of what it takes.
struct unit {
  const char* name;
  double size;
};
[[nodiscard]] inline double measured(const std::string& text, const char* flag, const std::vector<unit>& units,
                                     const char* example) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string behind(end, text.data() + text.size());
  for (const unit& each : units)
    if (error == std::errc{} && behind == each.name && belay::is_finite(number * each.size) && number > 0)
      return number * each.size;
  throw belay::input_error(std::string(flag) + " is a number larger than 0 with its unit, as in " + example +
                           ", not '" + text + "'");
}
/// Floating-point operations a second, with or without a unit.
[[nodiscard]] inline double flops_of(const std::string& text, const char* flag) {
  return measured(text, flag, {{"", 1}, {"FLOPS", 1}, {"GFLOPS", 1e9}, {"TFLOPS", 1e12}, {"PFLOPS", 1e15}},
                  "400TFLOPS or 4e14");
}

/// Where what a number leads to is held against a limit later.
inline constexpr std::size_t any = std::numeric_limits<std::size_t>::max();

/// An integer that counts nothing.
[[nodiscard]] inline CLI::Validator whole_number() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        std::uint64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc{} && end == text.data() + text.size()) return {};
        return "expected a whole number, at least 0 and below 2^64, got '" + text + "'";
      },
      "");
}

/// Zero sizes, negative numbers and what is no number at all are refused with the flag's name and its unit.
[[nodiscard]] inline CLI::Validator count_of(const char* unit, std::size_t least, std::size_t most) {
  return CLI::Validator(
      [=](const std::string& text) -> std::string {
        std::size_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most) {
          const std::string range = most == any ? ", at least " + std::to_string(least)
                                                : " from " + std::to_string(least) + " to " + std::to_string(most);
          return "expected a whole number of " + std::string(unit) + range + ", got '" + text + "'";
        }
        return {};
      },
      unit);
}

/// An empty name is most often a shell's variable that is not set.
[[nodiscard]] inline CLI::Validator a_name() {
  return CLI::Validator(
      [](const std::string& text) -> std::string { return text.empty() ? "expected a name, got an empty text" : ""; },
      "");
}

}  // namespace input
