// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What belay-info tells: sections of named facts, each with its value as JSON and as people read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/core/printable.hpp"
#include "tools/text_table.hpp"

namespace belay_info {

struct fact {
  std::string name, json, text;
};

struct section {
  std::string name;
  std::vector<fact> facts;
};

/// A number, a truth or a text; null where it is not known.
template <class T>
[[nodiscard]] std::string json_of(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_integral_v<T>) {
    return std::to_string(value);
  } else if constexpr (requires { value.has_value(); }) {
    return value ? json_of(*value) : "null";
  } else {
    std::string out;
    belay::append_json(out, value);
    return out;
  }
}

using members = std::vector<std::pair<std::string, std::string>>;  // names, and values as JSON

[[nodiscard]] inline std::string json_object(const members& all) {
  std::string out = "{";
  for (const auto& [name, json] : all) {
    if (out.size() > 1) out += ",";
    belay::append_json(out, name);
    out += ":" + json;
  }
  return out + "}";
}

/// "32 KiB", "23.5 GiB".
[[nodiscard]] inline std::string bytes_text(std::uint64_t bytes) {
  constexpr const char* units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  std::uint64_t size = 1;
  for (; unit + 1 < std::size(units) && bytes / size >= 1024; ++unit) size *= 1024;
  char text[32];
  const int digits = bytes % size == 0 ? 0 : 1;
  std::snprintf(text, sizeof text, "%.*f %s", digits, static_cast<double>(bytes) / static_cast<double>(size),
                units[unit]);
  return text;
}

[[nodiscard]] inline fact text_fact(std::string name, const std::optional<std::string>& value) {
  return {std::move(name), json_of(value), value ? belay::printable(*value) : "not known"};
}
[[nodiscard]] inline fact count_fact(std::string name, std::optional<std::uint64_t> value,
                                     const char* without = "not known") {
  return {std::move(name), json_of(value), value ? std::to_string(*value) : without};
}
[[nodiscard]] inline fact bytes_fact(std::string name, std::optional<std::uint64_t> value,
                                     const char* without = "not known") {
  return {std::move(name), json_of(value), value ? bytes_text(*value) : without};
}

/// One object with an object a section.
[[nodiscard]] inline std::string json_text(const std::vector<section>& all) {
  std::string out = "{";
  for (const section& one : all) {
    members inside;
    for (const fact& each : one.facts) inside.emplace_back(each.name, each.json);
    out += (out.size() > 1 ? ",\n " : "") + json_of(one.name) + ":" + json_object(inside);
  }
  return out + "}\n";
}

/// A line a fact; the section's name stands in the first of its lines.
[[nodiscard]] inline std::string readable_text(const std::vector<section>& all) {
  tools::text_table table;
  for (const section& one : all) {
    for (std::size_t i = 0; i < one.facts.size(); ++i)
      table.add({i == 0 ? one.name : "", belay::printable(one.facts[i].name), one.facts[i].text});
  }
  return table.text();
}

}  // namespace belay_info
