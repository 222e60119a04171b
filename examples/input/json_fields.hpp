// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Fields of one JSON object from outside, such as a config.json. Errors begin with the file's name and the field's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "belay/core/error.hpp"
#include "input/bounded_json.hpp"

namespace input {

/// Reads `values`, which `source` names; both outlive it. What is asked for and is not there, or is of another kind, is
/// a belay::input_error. A field that is null is not there.
class json_fields {
 public:
  using json = nlohmann::json;

  json_fields(const json& values, const std::string& source) : values_(values), source_(source) {}

  [[noreturn]] void refuse(const std::string& field, const std::string& why) const {
    throw belay::input_error(source_ + ": " + field + " " + why);
  }

  [[nodiscard]] const json* find(const char* field) const {
    const auto found = values_.find(field);
    return found == values_.end() || found->is_null() ? nullptr : &*found;
  }

  /// A whole number, at least 1.
  [[nodiscard]] std::size_t count(const char* field) const {
    const json* value = find(field);
    if (value == nullptr) refuse(field, "is missing");
    return count_in(field, *value, 1);
  }
  [[nodiscard]] std::size_t count(const char* field, std::size_t otherwise) const {
    const json* value = find(field);
    return value == nullptr ? otherwise : count_in(field, *value, 1);
  }
  /// A whole number, which may be 0.
  [[nodiscard]] std::size_t count_or_none(const char* field, std::size_t otherwise) const {
    const json* value = find(field);
    return value == nullptr ? otherwise : count_in(field, *value, 0);
  }
  [[nodiscard]] double number(const char* field, double otherwise) const {
    const json* value = find(field);
    if (value == nullptr) return otherwise;
    if (!value->is_number()) refuse(field, "is " + shown(*value) + ", a number is needed");
    return value->get<double>();
  }
  /// Whether it is true.
  [[nodiscard]] auto holds(const char* field, const json& otherwise) const {
    const json* value = find(field);
    const json& found = value == nullptr ? otherwise : *value;
    if (!found.is_boolean()) refuse(field, "is " + shown(found) + ", true or false is needed");
    return found.get<bool>();
  }
  void require(bool holds, const char* field, double value, const char* allowed) const {
    if (!holds) refuse(field, "is " + json(value).dump() + ", " + allowed + " is needed");
  }
  void same(const char* field, const json& wanted, const char* why) const {
    const json* value = find(field);
    if (value != nullptr && *value != wanted) refuse(field, "is " + shown(*value) + ": " + why);
  }

 private:
  std::size_t count_in(const char* field, const json& value, std::uint64_t least) const {
    constexpr std::uint64_t most = std::uint64_t{1} << 31U;
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() < least || value.get<std::uint64_t>() > most) {
      refuse(field,
             "is " + shown(value) + ", a whole number from " + std::to_string(least) + " to 2147483648 is needed");
    }
    return value.get<std::size_t>();
  }

  const json& values_;
  const std::string& source_;
};

}  // namespace input
