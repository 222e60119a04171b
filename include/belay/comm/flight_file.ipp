// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The text of flight files, and the line to standard error.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <system_error>
#include <utility>
#include <vector>

#include "belay/comm/flight_file.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/process.hpp"

namespace belay::inline BELAY_ABI {

/// Writes the members of a flight file.
class flight_writer {
 public:
  flight_writer(const flight_snapshot& world, const std::string& said, function_ref<void(std::string_view)> put)
      : world_(&world), said_(&said), put_(put) {}

  void write() {
    text_ += "{\"belay_flight\": 1";
    number("job", world_->job);
    number("epoch", world_->epoch);
    number("ranks", world_->size());
    text("transport", world_->transport);
    if (world_->told_by >= 0) number("told_by", world_->told_by);
    const abort_cause cause = world_->cause.value_or(abort_cause{});
    text_ += ",\n\"cause\": {";
    text("kind", world_->cause ? belay::name(cause.fault) : "none", "");
    list("culprits", cause.culprits);
    text("message", cause.message);
    text("there", cause.there);
    number("signal", cause.signal);
    number("exit_code", cause.exit_code);
    text_ += "},\n\"verdict\": ";
    append_json(text_, *said_);
    groups();
    text_ += ",\n\"by_rank\": [";
    for (int rank = 0; rank < world_->size(); ++rank) {
      text_ += rank == 0 ? "\n{" : ",\n{";
      number("rank", rank, "");
      number("pid", world_->rank(rank).pid);
      text("state", belay::name(world_->rank(rank).state));
      text_ += ", \"lanes\": {\n";
      history("caller", world_->rank(rank).called);
      text_ += ",\n";
      history("stream", world_->rank(rank).started);
      text_ += "}}";
    }
    text_ += "]}\n";
    put_(text_);
  }

 private:
  [[gnu::cold, gnu::noinline]] void key(const char* name, const char* before) {
    text_.append(before).append("\"").append(name).append("\": ");
  }
  template <class Number>
  void number(const char* name, Number value, const char* before = ", ") {
    key(name, before);
    put_number(std::to_string(value));
  }
  [[gnu::cold, gnu::noinline]] void put_number(const std::string& digits) { text_ += digits; }
  [[gnu::cold, gnu::noinline]] void text(const char* name, std::string_view value, const char* before = ", ") {
    key(name, before);
    append_json(text_, value);
  }
  void list(const char* name, const std::vector<int>& values) {
    key(name, ", ");
    for (std::size_t i = 0; i < values.size(); ++i) text_ += (i == 0 ? "[" : ", ") + std::to_string(values[i]);
    text_ += values.empty() ? "[]" : "]";
  }

  void groups() {
    text_ += ",\n\"groups\": [";
    const char* before = "";
    for (const known_group& group : world_->groups) {
      text_ += std::exchange(before, ", ");
      number("group", group.number, "{");
      list("members", group.members);
      text_ += "}";
    }
    text_ += "]";
  }

  // All that is kept; what a running rank overwrites meanwhile counts as dropped.
  [[gnu::cold, gnu::noinline]] void history(const char* lane_name, const flight_history& from) {
    const std::uint64_t end = from.count();
    std::uint64_t kept = 0;
    key(lane_name, "");
    text_ += "{\"entries\": [";
    for (std::uint64_t position = from.first(); position < end; ++position) {
      const flight_record entry = from[position];
      if (entry.what == operation::none) continue;
      number("n", position, kept++ == 0 ? "\n{" : ",\n{");
      text("op", belay::name(entry.what));
      number("group", entry.group);
      number("number", entry.number);
      number("bytes", entry.bytes);
      text("site", entry.site);
      text_ += std::string(", \"finished\": ") + (entry.reported ? "null" : entry.finished ? "true" : "false");
      const bool waits = entry.waiting_us > 0 && world_->until_us > entry.waiting_us;
      number("waited_us", waits ? world_->until_us - entry.waiting_us : entry.waited_us);
      text_ += "}";
      if (text_.size() >= 1 << 16) {
        put_(text_);
        text_.clear();
      }
    }
    text_ += "]";
    number("dropped", end - kept);
    text_ += "}";
  }

  const flight_snapshot* world_;
  const std::string* said_;
  function_ref<void(std::string_view)> put_;
  std::string text_;  // not yet put
};

[[gnu::cold]] BELAY_DECL void put_flight_json(const flight_snapshot& world, const std::string& said,
                                              function_ref<void(std::string_view)> put) {
  flight_writer(world, said, put).write();
}

[[gnu::cold]] BELAY_DECL std::string flight_output_text(const std::string& path, const char* what, int error) {
  const std::string folder = error == ENOENT || error == ENOTDIR ? missing_folder(path) : "";
  return std::string(what) + ": " + std::generic_category().message(error) + folder;
}

[[gnu::cold]] BELAY_DECL std::string flight_path(const std::string& folder, std::uint64_t job, std::uint64_t epoch) {
  const std::string again = epoch == 0 ? "" : "-" + std::to_string(epoch);
  return folder + (folder.ends_with('/') ? "" : "/") + "belay-flight-" + std::to_string(job) + again + ".json";
}

[[gnu::cold]] BELAY_DECL std::optional<std::string> flight_folder() {
  const char* const text = environment_variable("BELAY_FLIGHT_DIR");
  if (text == nullptr || *text == '\0') return std::nullopt;
  return text;
}

[[gnu::cold]] BELAY_DECL void report_flight(const flight_snapshot& world, const std::string& folder) {
  const std::string said = verdict(world);
  std::string line = "belay: " + said;
  try {
    line += " [" + write_flight_file(world, folder, said) + "]";
  } catch (const std::exception& problem) {
    line += " [no flight file: " + std::string(problem.what()) + "]";
  }
  line = printable(line) + '\n';  // one line, whatever a message holds
  std::fwrite(line.data(), 1, line.size(), stderr);
}

[[gnu::cold]] BELAY_DECL flight_record last_like(const flight_history& from, const flight_record& call) {
  for (std::uint64_t position = from.count(); position > from.first(); --position) {
    flight_record found = from[position - 1];
    const bool like = (found.what == operation::exchange) == (call.what == operation::exchange);
    if (found.what != operation::none && found.group == call.group && like) return found;
  }
  return {};
}

[[gnu::cold]] BELAY_DECL std::vector<open_operation> open_operations(const flight_snapshot& world) {
  std::vector<open_operation> out;
  const auto find = [&](lane which, const flight_record& call) -> open_operation& {
    for (open_operation& each : out) {
      const bool exchanges = each.call.what == operation::exchange && call.what == operation::exchange;
      const bool collectives = each.call.what != operation::exchange && call.what != operation::exchange;
      if (each.which != which || each.call.group != call.group) continue;
      if (exchanges || (collectives && each.call.number == call.number)) return each;
    }
    out.push_back({which, call, {}, {}, 0});
    return out.back();
  };
  for (lane which : all_lanes) {
    for (int rank = 0; rank < world.size(); ++rank) {
      const flight_record last = world.rank(rank).of(which).last();
      if (last.what == operation::none || last.finished || last.reported) continue;
      open_operation& here = find(which, last);
      here.inside.push_back(rank);
      if (last.waiting_us > 0 && (here.since_us == 0 || last.waiting_us < here.since_us))
        here.since_us = last.waiting_us;
    }
  }
  for (open_operation& each : out) {
    if (each.call.what == operation::exchange) continue;  // pairs meet in it: nobody has to come
    for (const known_group& group : world.groups) {
      if (group.number != each.call.group) continue;
      for (int rank : group.members) {
        if (rank < 0 || rank >= world.size()) continue;
        const flight_record last = last_like(world.rank(rank).of(each.which), each.call);
        if (last.what == operation::none || last.number < each.call.number) each.missing.push_back(rank);
      }
    }
  }
  // By selection: they are few, and std::sort is much code.
  const auto before = [](const open_operation& a, const open_operation& b) {
    return a.call.group != b.call.group ? a.call.group < b.call.group : a.inside < b.inside;
  };
  for (auto place = out.begin(); place != out.end(); ++place) {
    std::swap(*place, *std::min_element(place, out.end(), before));
  }
  return out;
}

[[gnu::cold]] BELAY_DECL std::string duration_text(std::uint64_t us) {
  char out[32] = "";
  const auto value = static_cast<double>(us);
  if (us >= 100'000)
    std::snprintf(out, sizeof out, us < 10'000'000 ? "%.2f s" : "%.0f s", value * 1e-6);
  else if (us >= 1'000)
    std::snprintf(out, sizeof out, "%.1f ms", value * 1e-3);
  else if (us > 0)
    std::snprintf(out, sizeof out, "%.0f us", value);
  return out;
}

[[gnu::cold]] BELAY_DECL std::string operation_text(const flight_record& call, lane which) {
  std::string out = std::string(which == lane::stream ? "started " : "") + name(call.what);
  if (call.what != operation::exchange) out += " #" + std::to_string(call.number);
  return call.group == 0 ? out : out + " of group " + std::to_string(call.group);
}

/// Makes the sentence of a world, which outlives it. Reads once, when it is made, which ranks wait in which operation.
class flight_diagnosis {
 public:
  explicit flight_diagnosis(const flight_snapshot& world)
      : world_(&world), open_(open_operations(world)), cause_(world.cause.value_or(abort_cause{})) {}

  [[nodiscard, gnu::cold]] std::string text() const {
    if (!world_->cause) return "no rank has failed" + after("; ", waits());
    switch (cause_.fault) {
      case comm_fault::mismatch: return mismatch();
      case comm_fault::peer_failed: return ended() + after("; ", waits());
      case comm_fault::timeout: {
        const std::string seen = absences();
        return seen.empty() ? cause_.message : seen;
      }
      case comm_fault::revoked: break;
    }
    return (cause_.message.empty() ? "the group was given up" : cause_.message) + after("; ", waits());
  }

 private:
  [[nodiscard, gnu::cold]] static std::string after(const char* joint, const std::string& text) {
    return text.empty() ? text : joint + text;
  }
  [[nodiscard]] bool is_culprit(int rank) const {
    return std::find(cause_.culprits.begin(), cause_.culprits.end(), rank) != cause_.culprits.end();
  }
  [[nodiscard]] static bool holds(const std::vector<int>& ranks, int rank) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  }

  // "ranks 0, 1 have waited there for 0.21 s"; "rank 0 waits there" where nobody slept.
  [[nodiscard, gnu::cold]] std::string waiting(const std::vector<int>& ranks, const open_operation& call,
                                               const std::string& place) const {
    const std::uint64_t end = world_->until_us;
    const bool one = ranks.size() == 1, slept = call.since_us > 0 && end > call.since_us;
    const char* const verb = slept ? (one ? " has waited " : " have waited ") : (one ? " waits " : " wait ");
    return ranks_text(ranks) + verb + place + (slept ? " for " + duration_text(end - call.since_us) : "");
  }
  [[nodiscard, gnu::cold]] static std::string place_of(const open_operation& call) {
    return operation_text(call.call, call.which) + " at " + call.call.site;
  }

  // "ranks 0, 1 have waited in all_gather #118 at train.cpp:88 for 0.21 s; ...", without the culprits.
  [[nodiscard, gnu::cold]] std::string waits() const {
    std::string out;
    for (const open_operation& call : open_) {
      std::vector<int> innocent;
      for (int rank : call.inside) {
        if (!world_->cause || !is_culprit(rank)) innocent.push_back(rank);
      }
      if (innocent.empty()) continue;
      out += (out.empty() ? "" : "; ") + waiting(innocent, call, "in " + place_of(call));
    }
    return out;
  }

  // Which ranks never entered what, and what the ranks do that wait nowhere.
  [[nodiscard, gnu::cold]] std::string absences() const {
    std::string out;
    std::vector<bool> elsewhere(world_->ranks.size());
    for (const open_operation& call : open_) {
      const bool exchange = call.call.what == operation::exchange;
      if (call.missing.empty() && !exchange) continue;
      out += out.empty() ? "" : "; ";
      out += exchange ? waiting(call.inside, call, "for others in " + place_of(call))
                      : ranks_text(call.missing) + " never entered " + place_of(call) + "; " +
                            waiting(call.inside, call, "there");
      for (int rank : exchange ? cause_.culprits : call.missing) {
        if (!waits_somewhere(rank)) elsewhere.at(static_cast<std::size_t>(rank)) = true;
      }
    }
    for (int rank = 0; rank < world_->size(); ++rank) {  // also one that was stopped inside of an operation
      if (world_->rank(rank).state == rank_state::stopped) elsewhere[static_cast<std::size_t>(rank)] = true;
    }
    std::size_t count = 0;
    std::string what_they_do;
    for (int rank = 0; rank < world_->size(); ++rank) {
      if (elsewhere[static_cast<std::size_t>(rank)] && ++count <= most_told) what_they_do += "; " + whereabouts(rank);
    }
    if (!out.empty() && count == 0 && open_.size() > 1) out += "; they wait for each other";
    out += what_they_do;
    if (count > most_told) out += "; and " + std::to_string(count - most_told) + " more";
    return out;
  }

  [[nodiscard]] bool waits_somewhere(int rank) const {
    return std::any_of(open_.begin(), open_.end(),
                       [&](const open_operation& call) { return holds(call.inside, rank); });
  }

  // "rank 2 is running, after all_gather #117 at train.cpp:87"
  [[nodiscard, gnu::cold]] std::string whereabouts(int rank) const {
    const char* how = "is running";
    switch (world_->rank(rank).state) {
      case rank_state::running: break;
      case rank_state::stopped: how = "is stopped"; break;
      case rank_state::gone: how = "is gone"; break;
      case rank_state::left: how = "has left"; break;
      case rank_state::absent: how = "has not come"; break;
      case rank_state::unknown: how = "cannot be seen from here"; break;
    }
    return "rank " + std::to_string(rank) + " " + how + ", " + world_->rank(rank).called.last().text();
  }

  [[nodiscard, gnu::cold]] std::string ended() const {
    if (cause_.culprits.empty()) return cause_.message;
    const int rank = cause_.culprits.front();
    const std::string where_it_was = world_->rank(rank).called.last().text();
    if (cause_.signal > 0) {
      return "rank " + std::to_string(rank) + " was ended by " + signal_name(cause_.signal) + " " + where_it_was;
    }
    const std::string code = cause_.exit_code >= 0 ? "exited with code " + std::to_string(cause_.exit_code) : "";
    if (cause_.message.empty()) {
      return "rank " + std::to_string(rank) + " " + (code.empty() ? "failed" : code) + " " + where_it_was;
    }
    return cause_.message +
           (code.empty() || cause_.message.find(code) != std::string::npos ? "" : " (it " + code + ")");
  }

  [[nodiscard, gnu::cold]] std::string mismatch() const {
    for (const open_operation& call : open_) {
      if (call.call.what == operation::exchange || cause_.culprits.empty() ||
          !holds(call.inside, cause_.culprits.front())) {
        continue;
      }
      const std::string group = call.call.group == 0 ? "" : " of group " + std::to_string(call.call.group);
      return "the ranks do not agree on operation #" + std::to_string(call.call.number) + group + ": " + cause_.message;
    }
    return "the ranks do not agree: " + cause_.message;
  }

  static constexpr std::size_t most_told = 8;

  const flight_snapshot* world_;
  std::vector<open_operation> open_;
  abort_cause cause_;
};

[[gnu::cold]] BELAY_DECL std::string verdict(const flight_snapshot& world) { return flight_diagnosis(world).text(); }

}  // namespace belay::inline BELAY_ABI
