// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A flight file read back (see belay/comm/flight_file.hpp). What is not as it should be is refused with the
// place: a file that was cut off at a crash must not be taken for a whole one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "belay/core/error.hpp"
#include "input/bounded_json.hpp"
#include "input/regular_file.hpp"

namespace belay_fr {

struct flight_entry {
  std::uint64_t turn = 0;
  std::string op;
  std::uint32_t group = 0;
  std::uint64_t number = 0;
  std::uint64_t bytes = 0;
  std::string site;
  bool finished = false;
  std::uint64_t waited_us = 0;
  bool heard = false;  // it was entered; whether it is over is not known
};

struct history {
  std::vector<flight_entry> entries;  // oldest first
  std::uint64_t dropped = 0;
};

inline constexpr const char* lane_names[] = {"caller", "stream"};

struct rank_record {
  int rank = 0;
  std::int64_t pid = 0;
  std::string state;
  history lanes[2];
};

struct failure {
  std::string kind, message, there;
  std::vector<int> culprits;
  int signal = 0;
  int exit_code = -1;
};

struct flight {
  std::uint64_t job = 0;
  std::uint64_t epoch = 0;
  std::string transport, verdict;
  int told_by = -1;  // the rank that knows its own operations, and of others what it heard; -1: all are known
  failure cause;
  std::map<std::uint32_t, std::vector<int>> groups;
  std::vector<rank_record> ranks;
};

/// JSON whose objects and arrays know at which byte of the file they begin.
class located_json {
 public:
  using json = nlohmann::ordered_json;

  /// Throws belay::file_error for what is no JSON.
  located_json(std::string path, const std::string& text) : path_(std::move(path)) {
    input::json_parser<json> parser(path_, text, "is damaged or no flight file");
    root_ = parser.parse();
    locate(parser.begins());
  }

  [[nodiscard]] const json& root() const noexcept { return root_; }

  [[noreturn]] void refuse(const json& at, const std::string& message) const {
    const auto found = begins_.find(&at);
    throw belay::file_error(path_, found == begins_.end() ? 0 : found->second, message);
  }

  /// The member `key` of `object`; refused where it is missing or no `T`.
  template <class T>
  [[nodiscard]] T get(const json& object, const char* key) const {
    const json& value = member(object, key);
    const std::string name = std::string("\"") + key + "\"";
    if constexpr (std::is_same_v<T, std::string>) {
      if (!value.is_string()) refuse(object, name + " is no text");
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!value.is_boolean()) refuse(object, name + " is neither true nor false");
    } else {
      if (!value.is_number_integer()) refuse(object, name + " is no whole number");
      const bool fits = value.is_number_unsigned() ? std::in_range<T>(value.template get<std::uint64_t>())
                                                   : std::in_range<T>(value.template get<std::int64_t>());
      if (!fits) refuse(object, name + " is out of range: " + input::shown(value));
    }
    return value.template get<T>();
  }
  [[nodiscard]] const json& member(const json& object, const char* key) const {
    if (!object.is_object()) refuse(object, "an object is expected");
    const auto found = object.find(key);
    if (found == object.end()) refuse(object, std::string("\"") + key + "\" is missing");
    return *found;
  }
  [[nodiscard]] const json& array(const json& object, const char* key) const {
    const json& value = member(object, key);
    if (!value.is_array()) refuse(object, std::string("\"") + key + "\" is no array");
    return value;
  }
  /// An array of ranks below `ranks`.
  [[nodiscard]] std::vector<int> ranks(const json& object, const char* key, std::size_t ranks) const {
    std::vector<int> out;
    for (const json& value : array(object, key)) {
      if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= ranks)
        refuse(object, std::string("\"") + key + "\" names no rank: " + input::shown(value));
      out.push_back(value.get<int>());
    }
    return out;
  }

 private:
  // Objects and arrays of the tree in the order in which they began.
  void locate(const std::vector<std::size_t>& begins) {
    std::vector<const json*> stack{&root_};
    std::size_t next = 0;
    while (!stack.empty()) {
      const json* here = stack.back();
      stack.pop_back();
      if (!here->is_structured()) continue;
      if (next == begins.size()) break;
      begins_[here] = begins[next++];
      for (auto child = here->rbegin(); child != here->rend(); ++child) stack.push_back(&*child);
    }
    if (next != begins.size()) throw belay::file_error(path_, 0, "an object has a member twice");
  }

  std::string path_;
  json root_;
  std::unordered_map<const json*, std::size_t> begins_;
};

namespace parts {

using json = located_json::json;

inline history read_history(const located_json& from, const json& lane) {
  history out;
  out.dropped = from.get<std::uint64_t>(lane, "dropped");
  for (const json& each : from.array(lane, "entries")) {
    const bool heard = from.member(each, "finished").is_null();
    out.entries.push_back({from.get<std::uint64_t>(each, "n"), from.get<std::string>(each, "op"),
                           from.get<std::uint32_t>(each, "group"), from.get<std::uint64_t>(each, "number"),
                           from.get<std::uint64_t>(each, "bytes"), from.get<std::string>(each, "site"),
                           !heard && from.get<bool>(each, "finished"), from.get<std::uint64_t>(each, "waited_us"),
                           heard});
  }
  return out;
}

inline failure read_cause(const located_json& from, const json& cause, std::size_t ranks) {
  return {from.get<std::string>(cause, "kind"),  from.get<std::string>(cause, "message"),
          from.get<std::string>(cause, "there"), from.ranks(cause, "culprits", ranks),
          from.get<int>(cause, "signal"),        from.get<int>(cause, "exit_code")};
}

}  // namespace parts

/// Reads the text of a file. Throws belay::file_error, which names the byte, for what is none.
[[nodiscard]] inline flight read_flight(const std::string& path, const std::string& text) {
  const located_json from(path, text);
  const located_json::json& root = from.root();
  if (!root.is_object() || !root.contains("belay_flight")) from.refuse(root, "is no flight file of Belay");
  if (from.get<int>(root, "belay_flight") != 1) from.refuse(root, "is a flight file of another version of Belay");
  flight out;
  out.job = from.get<std::uint64_t>(root, "job");
  out.epoch = from.get<std::uint64_t>(root, "epoch");
  out.transport = from.get<std::string>(root, "transport");
  out.verdict = from.get<std::string>(root, "verdict");
  const auto& by_rank = from.array(root, "by_rank");
  if (by_rank.empty() || by_rank.size() != from.get<std::size_t>(root, "ranks")) {
    const std::string said = input::shown(from.member(root, "ranks"));
    from.refuse(by_rank, "holds " + std::to_string(by_rank.size()) + " of " + said + " ranks");
  }
  if (root.contains("told_by")) {
    out.told_by = from.get<int>(root, "told_by");
    if (out.told_by < 0 || out.told_by >= static_cast<int>(by_rank.size())) {
      from.refuse(root, "\"told_by\" names no rank: " + std::to_string(out.told_by));
    }
  }
  out.cause = parts::read_cause(from, from.member(root, "cause"), by_rank.size());
  for (const auto& group : from.array(root, "groups")) {
    out.groups[from.get<std::uint32_t>(group, "group")] = from.ranks(group, "members", by_rank.size());
  }
  for (const auto& each : by_rank) {
    rank_record rank;
    rank.rank = from.get<int>(each, "rank");
    if (rank.rank != static_cast<int>(out.ranks.size())) from.refuse(each, "ranks are not in order");
    rank.pid = from.get<std::int64_t>(each, "pid");
    rank.state = from.get<std::string>(each, "state");
    const auto& lanes = from.member(each, "lanes");
    for (std::size_t i = 0; i < 2; ++i) rank.lanes[i] = parts::read_history(from, from.member(lanes, lane_names[i]));
    out.ranks.push_back(std::move(rank));
  }
  return out;
}

/// Bytes of a file that are read; thousands of ranks with full recorders take less.
inline constexpr std::uint64_t largest_flight_file = std::uint64_t{1} << 30;

/// Reads a whole file. Throws belay::file_error, which names the byte, for one that cannot be read or is none.
[[nodiscard]] inline flight read_flight(const std::string& path) {
  const std::string text = input::content_of(path, largest_flight_file);
  if (text.empty()) throw belay::file_error(path, 0, "is empty");
  return read_flight(path, text);
}

}  // namespace belay_fr
