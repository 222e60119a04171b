// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The numbers of owners, and what a number says.
#pragma once

#include "belay/core/printable.hpp"
#include "belay/device/lease_owners.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL std::uint16_t lease_owners::number(const lease_owner& of) noexcept {
  std::size_t at = hash(of) % table_size;
  for (; places_[at] != 0; at = (at + 1) % table_size) {
    known_owner& known = entries_[index_of(places_[at])];
    if (!known.is(of)) continue;
    known.of.micro_batch = of.micro_batch;
    known.name(of);  // of a model that has gone, and another one at its place
    return places_[at];
  }
  const std::size_t next = number_of(entries_.size());
  if (next > lease_mark::most_owners) return 0;
  try {
    entries_.emplace_back(of);
  } catch (...) {
    return 0;
  }
  return places_[at] = static_cast<std::uint16_t>(next);
}

BELAY_DECL std::string lease_owners::text(named_owner found) const {
  std::size_t first = entries_.size(), others = 0;
  if (found.exact != 0) {
    if (named(found.exact)) first = index_of(found.exact);
  } else if (found.narrow != 0) {
    for (std::size_t n = found.narrow; named(n); n += 64) {
      if (first == entries_.size())
        first = index_of(n);
      else
        ++others;
    }
  }
  if (first == entries_.size()) return {};
  std::string out = "memory was read that had been given back; who had it last: " + entries_[first].text();
  if (others > 0)
    out += " (or one of " + std::to_string(others) + " others: a narrow number has room for the end of theirs)";
  return out;
}

BELAY_DECL void lease_owners::expect_overwritten() {
  if (failure_ != nullptr) [[unlikely]]
    std::rethrow_exception(std::exchange(failure_, nullptr));
}

BELAY_DECL std::size_t lease_owners::hash(const lease_owner& of) noexcept {
  std::uint64_t out = static_cast<std::uint64_t>(of.purpose) + 8 * of.layer_index;
  for (const std::uint64_t word : {static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(of.layer)),
                                   static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(of.parameter)),
                                   static_cast<std::uint64_t>(of.at.line)})
    out = (out ^ word) * 0x9E3779B97F4A7C15U;
  return static_cast<std::size_t>(out >> 40);
}

BELAY_DECL bool lease_owners::known_owner::is(const lease_owner& other) const noexcept {
  return of.layer == other.layer && of.parameter == other.parameter && of.layer_index == other.layer_index &&
         of.purpose == other.purpose && of.at.line == other.at.line && of.at.file == other.at.file;
}

BELAY_DECL void lease_owners::known_owner::name(const lease_owner& owner) noexcept {
  std::strncpy(layer.data(), owner.layer, layer.size() - 1);
  std::strncpy(parameter.data(), owner.parameter, parameter.size() - 1);
}

BELAY_DECL std::string lease_owners::known_owner::text() const {
  const std::string call = "layer " + std::to_string(of.layer_index) + " '" + printable(layer.data()) + "'";
  const std::string at = " (micro-batch " + std::to_string(of.micro_batch) + "), called at " + of.at.text();
  const std::string names =
      "parameter " + printable(parameter.data()) + (of.more == 0 ? "" : " and " + std::to_string(of.more) + " more");
  switch (of.purpose) {
    case lease_purpose::kept: return "what " + call + " had kept" + at;
    case lease_purpose::remembered: return "what " + call + " had remembered" + at;
    case lease_purpose::scratch: return "scratch of " + call + at;
    case lease_purpose::gradient: return "the gradient of an input, of a call at " + of.at.text();
    case lease_purpose::gathered:
      return names + ", gathered for a call of " + call +
             " that was over: what frame.read gives is good until the call returns";
    case lease_purpose::staged: return "a gradient bucket";
  }
  return call;
}

}  // namespace belay::inline BELAY_ABI
