// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The operations of all ranks side by side: a row is one operation of one group, a column a rank, so that a hole shows
// which rank is missing in which operation.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tools/belay_fr/flight.hpp"

namespace belay_fr {

/// The key by which operations of several ranks are one: exchanges are counted apart, by each rank for itself.
struct row_key {
  std::uint32_t group = 0;
  bool exchange = false;
  std::uint64_t number = 0;

  [[nodiscard]] auto operator<=>(const row_key&) const = default;
};

[[nodiscard]] inline row_key key_of(const flight_entry& of) { return {of.group, of.op == "exchange", of.number}; }

/// How a rank stands to an operation.
enum class presence {
  outside,   // it is not in the group, or that is not known
  finished,  //
  inside,    // and never came out
  heard,     // it has entered; the rank that tells knows no more
  never,     // it has not entered it
  not_kept   // the ring has gone round since
};

struct cell {
  presence how = presence::outside;
  const flight_entry* what = nullptr;  // finished, inside, heard
};

struct row {
  row_key key;
  std::vector<cell> by_rank;
};

/// One lane of a flight.
class alignment {
 public:
  alignment(const flight& of, std::size_t lane) : flight_(&of), lane_(lane), index_(of.ranks.size()) {
    for (std::size_t rank = 0; rank < of.ranks.size(); ++rank) {
      for (const flight_entry& each : entries(rank)) index_[rank][key_of(each)] = &each;
    }
  }

  /// The last `count` operations of each rank, and what the others did of them; oldest first.
  [[nodiscard]] std::vector<row> last(std::size_t count) const {
    std::vector<row> out;
    for (const row_key& key : merged(count)) {
      row next{key, {}};
      for (std::size_t rank = 0; rank < index_.size(); ++rank) next.by_rank.push_back(cell_of(rank, key));
      out.push_back(std::move(next));
    }
    return out;
  }

 private:
  [[nodiscard]] const std::vector<flight_entry>& entries(std::size_t rank) const {
    return flight_->ranks[rank].lanes[lane_].entries;
  }

  [[nodiscard]] cell cell_of(std::size_t rank, const row_key& key) const {
    const auto found = index_[rank].find(key);
    if (found != index_[rank].end()) {
      const flight_entry& here = *found->second;
      return {here.heard ? presence::heard : here.finished ? presence::finished : presence::inside, &here};
    }
    const auto group = flight_->groups.find(key.group);
    if (key.exchange || group == flight_->groups.end()) return {};
    const std::vector<int>& members = group->second;
    if (std::find(members.begin(), members.end(), static_cast<int>(rank)) == members.end()) return {};
    // The first that it has of a later number tells that it has been here.
    const auto later = index_[rank].upper_bound(key);
    const bool came = later != index_[rank].end() && later->first.group == key.group && !later->first.exchange;
    return {came ? presence::not_kept : presence::never, nullptr};
  }

  // Each rank's last operations in one order that is also each rank's own, as far as there is one.
  [[nodiscard]] std::vector<row_key> merged(std::size_t count) const {
    std::vector<std::vector<row_key>> rest(index_.size());  // the next one at the end
    for (std::size_t rank = 0; rank < rest.size(); ++rank) {
      const std::vector<flight_entry>& all = entries(rank);
      const std::size_t kept = std::min(count, all.size());
      for (std::size_t i = 0; i < kept; ++i) rest[rank].push_back(key_of(all[all.size() - 1 - i]));
    }
    std::vector<row_key> out;
    while (true) {
      const row_key* chosen = nullptr;
      for (const auto& heads : rest) {
        if (heads.empty()) continue;
        const row_key& head = heads.back();
        const bool early = std::any_of(rest.begin(), rest.end(), [&](const auto& other) {
          return std::any_of(other.begin(), other.end(), [&](const row_key& each) {
            const bool same = each.group == head.group && each.exchange == head.exchange;
            return (same && each.number < head.number) || (each == head && other.back() != head);
          });
        });
        if (chosen == nullptr) chosen = &head;
        if (early) continue;
        chosen = &head;
        break;
      }
      if (chosen == nullptr) return out;
      out.push_back(*chosen);
      for (auto& each : rest) std::erase(each, out.back());
    }
  }

  const flight* flight_;
  std::size_t lane_;
  std::vector<std::map<row_key, const flight_entry*>> index_;
};

}  // namespace belay_fr
