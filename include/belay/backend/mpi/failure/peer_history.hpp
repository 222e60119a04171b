// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a rank has heard of its peers' operations in one lane, without asking: each letter says what its sender has
// entered. It is what a flight file can tell of ranks whose memory nobody else sees.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "belay/comm/fingerprint.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/comm/flight_snapshot.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// Written by the threads of a rank that read letters and notices, read by the one that reports.
class peer_history {
 public:
  /// Kept of each peer and each group, so that the last word of a group outlives what the peer does in another one.
  static constexpr std::size_t kept = 8;

  /// A peer's letter: it has entered this operation.
  void entered(int from, flight_record what) {
    const std::lock_guard lock(mutex_);
    peer& sender = peer_of(from);
    track& here = sender.tracks[{what.group, what.what == operation::exchange}];
    if (here.count > 0 && here.latest().what.number == what.number) return;  // an exchange has many letters
    what.reported = true;
    ++here.count;
    here.latest() = {sender.count++, std::move(what)};
  }

  enum class telling { stays, leaves };
  /// What a peer says of itself: its last operation here, and whether it is over. Who leaves enters no other one.
  void told(int from, flight_record what, telling how) {
    const std::lock_guard lock(mutex_);
    peer& sender = peer_of(from);
    sender.left = sender.left || how == telling::leaves;
    sender.told = std::move(what);
    sender.told_at = sender.count;
  }

  [[nodiscard]] bool left(int rank) const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(rank) < peers_.size() && peers_[static_cast<std::size_t>(rank)].left;
  }

  /// The groups in which a peer has written to this rank: both are in them.
  [[nodiscard]] std::vector<std::uint32_t> groups_with(int rank) const {
    const std::lock_guard lock(mutex_);
    std::vector<std::uint32_t> out;
    if (static_cast<std::size_t>(rank) >= peers_.size()) return out;
    for (const auto& each : peers_[static_cast<std::size_t>(rank)].tracks) out.push_back(each.first.first);
    return out;
  }

  /// A peer's operations as far as they were heard of. A lane runs one after the other, so all but the last are over;
  /// the last one may be, unless the peer has told.
  [[nodiscard]] flight_history of(int rank) const {
    const std::lock_guard lock(mutex_);
    if (static_cast<std::size_t>(rank) >= peers_.size()) return {};
    const peer& sender = peers_[static_cast<std::size_t>(rank)];
    std::vector<turned> all;
    for (const auto& [group, from] : sender.tracks) {
      for (std::uint64_t i = from.count - std::min<std::uint64_t>(from.count, kept); i < from.count; ++i) {
        all.push_back(from.ring[i % kept]);
      }
    }
    std::sort(all.begin(), all.end(), [](const turned& a, const turned& b) { return a.turn < b.turn; });
    std::vector<flight_record> out;
    for (turned& each : all) out.push_back(std::move(each.what));
    std::uint64_t count = sender.count;
    if (sender.told.what != operation::none && sender.told_at == sender.count) {
      const auto same = [&](const flight_record& known) {
        const bool exchanges = known.what == operation::exchange, also = sender.told.what == operation::exchange;
        return known.group == sender.told.group && known.number == sender.told.number && exchanges == also;
      };
      // One that this rank is no part of, or not yet.
      const bool last = !out.empty() && same(out.back());
      if (!last && std::none_of(out.begin(), out.end(), same)) {
        out.push_back(sender.told);
        ++count;
      } else if (last) {
        out.back() = sender.told;
      }
    }
    for (std::size_t i = 0; i + 1 < out.size(); ++i) {
      out[i].reported = false;
      out[i].finished = true;
    }
    return {std::move(out), count};
  }

 private:
  struct turned {
    std::uint64_t turn = 0;
    flight_record what;
  };
  struct track {
    std::uint64_t count = 0;
    std::array<turned, kept> ring;

    [[nodiscard]] turned& latest() noexcept { return ring[(count - 1) % kept]; }
  };
  struct peer {
    std::map<std::pair<std::uint32_t, bool>, track> tracks;  // of each group; exchanges are counted on their own
    std::uint64_t count = 0;
    flight_record told;
    std::uint64_t told_at = 0;
    bool left = false;
  };

  [[nodiscard]] peer& peer_of(int rank) {
    if (static_cast<std::size_t>(rank) >= peers_.size()) peers_.resize(static_cast<std::size_t>(rank) + 1);
    return peers_[static_cast<std::size_t>(rank)];
  }

  mutable std::mutex mutex_;
  std::vector<peer> peers_;
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
