// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The operations of a rank's peers in one lane, as their control messages say: each names what its sender has entered.
// A flight file has no more of ranks whose memory this one cannot read.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
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
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// Written by the threads of a rank that receive messages, read by the one that reports.
class peer_history {
 public:
  /// Records kept of each peer and group, so that the last one of a group outlives what the peer does in others.
  static constexpr std::size_t kept = 8;

  /// A peer has entered this operation.
  void add_entry(int from, flight_record what) {
    const std::lock_guard lock(mutex_);
    peer& sender = peer_of(from);
    group_history& here = sender.groups[{what.group, what.what == operation::exchange}];
    if (here.count > 0 && here.latest().what.number == what.number) return;  // an exchange has many messages
    what.reported = true;
    ++here.count;
    here.latest() = {sender.count++, std::move(what)};
  }

  enum class reporter { running, exited };  // one that has exited enters no other operation
  /// A peer reports its own last operation, and whether that is over.
  void add_report(int from, flight_record what, reporter state) {
    const std::lock_guard lock(mutex_);
    peer& sender = peer_of(from);
    sender.exited = sender.exited || state == reporter::exited;
    sender.report = std::move(what);
    sender.reported_at = sender.count;
  }

  [[nodiscard]] bool exited(int rank) const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(rank) < peers_.size() && peers_[static_cast<std::size_t>(rank)].exited;
  }

  /// The groups in which a peer has sent to this rank: both are members.
  [[nodiscard]] std::vector<std::uint32_t> groups_with(int rank) const {
    const std::lock_guard lock(mutex_);
    std::vector<std::uint32_t> out;
    if (static_cast<std::size_t>(rank) >= peers_.size()) return out;
    for (const auto& each : peers_[static_cast<std::size_t>(rank)].groups) out.push_back(each.first.first);
    return out;
  }

  /// A peer's known operations. A lane runs one after the other, so all but the last are over; the last one may be,
  /// unless the peer has reported.
  [[nodiscard]] flight_history of(int rank) const {
    const std::lock_guard lock(mutex_);
    if (static_cast<std::size_t>(rank) >= peers_.size()) return {};
    const peer& sender = peers_[static_cast<std::size_t>(rank)];
    std::vector<sequenced_record> all;
    for (const auto& [group, from] : sender.groups) {
      for (std::uint64_t i = from.count - lesser_of<std::uint64_t>(from.count, kept); i < from.count; ++i) {
        all.push_back(from.ring[i % kept]);
      }
    }
    std::sort(all.begin(), all.end(),
              [](const sequenced_record& a, const sequenced_record& b) { return a.sequence < b.sequence; });
    std::vector<flight_record> out;
    for (sequenced_record& each : all) out.push_back(std::move(each.what));
    std::uint64_t count = sender.count;
    if (sender.report.what != operation::none && sender.reported_at == sender.count) {
      const auto same = [&](const flight_record& known) {
        const bool exchanges = known.what == operation::exchange, also = sender.report.what == operation::exchange;
        return known.group == sender.report.group && known.number == sender.report.number && exchanges == also;
      };
      // One that this rank is no part of, or not yet.
      const bool last = !out.empty() && same(out.back());
      if (!last && std::none_of(out.begin(), out.end(), same)) {
        out.push_back(sender.report);
        ++count;
      } else if (last) {
        out.back() = sender.report;
      }
    }
    for (std::size_t i = 0; i + 1 < out.size(); ++i) {
      out[i].reported = false;
      out[i].finished = true;
    }
    return {std::move(out), count};
  }

 private:
  struct sequenced_record {
    std::uint64_t sequence = 0;  // among all of the peer
    flight_record what;
  };
  struct group_history {
    std::uint64_t count = 0;
    std::array<sequenced_record, kept> ring;

    [[nodiscard]] sequenced_record& latest() noexcept { return ring[(count - 1) % kept]; }
  };
  struct peer {
    std::map<std::pair<std::uint32_t, bool>, group_history> groups;  // exchanges are counted on their own
    std::uint64_t count = 0;
    flight_record report;
    std::uint64_t reported_at = 0;
    bool exited = false;
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
