// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the ranks of a group share, and where they find it. Ranks create groups independently; the k-th group
// that a rank makes of a set of members is the k-th that every other member makes of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host/exchange.hpp"
#include "belay/backend/host/health.hpp"
#include "belay/backend/host/rendezvous.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Shared by the ranks of one group: a meeting point and an exchange for each lane. Everything is allocated here.
class group_state {
 public:
  group_state(std::shared_ptr<health> world, std::vector<int> members, std::uint32_t id)
      : world_(std::move(world)), members_(std::move(members)), id_(id) {
    meetings_[index(lane::caller)] = std::make_unique<rendezvous>(*world_, members_, lane::caller, id);
    meetings_[index(lane::stream)] = std::make_unique<rendezvous>(*world_, members_, lane::stream, id);
    exchanges_[index(lane::caller)] = std::make_unique<post_office>(*world_, members_, lane::caller, id);
    exchanges_[index(lane::stream)] = std::make_unique<post_office>(*world_, members_, lane::stream, id);
  }

  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] std::span<const int> members() const noexcept { return members_; }
  [[nodiscard]] std::uint32_t id() const noexcept { return id_; }
  [[nodiscard]] rendezvous& meeting(lane which) noexcept { return *meetings_[index(which)]; }
  [[nodiscard]] post_office& exchange(lane which) noexcept { return *exchanges_[index(which)]; }

 private:
  std::shared_ptr<health> world_;
  std::vector<int> members_;
  std::uint32_t id_;
  std::unique_ptr<rendezvous> meetings_[lane_count];
  std::unique_ptr<post_office> exchanges_[lane_count];
};

/// Finds the shared state of a group; the only place where making a group meets other ranks.
class group_registry {
 public:
  explicit group_registry(std::shared_ptr<health> world) : world_(std::move(world)) {}

  /// The next group that `rank` makes of `members` (ranks of the world, in group order, `rank` among them).
  [[nodiscard]] std::shared_ptr<group_state> join(int rank, std::span<const int> members, where at) {
    std::vector<int> order(members.begin(), members.end());
    std::vector<int> key = order;
    std::sort(key.begin(), key.end());
    expect_member(rank, key, at);
    const std::lock_guard lock(mutex_);
    family& those = families_[key];
    if (those.taken.empty()) those.taken.resize(world_size());
    const std::uint64_t turn = those.taken[static_cast<std::size_t>(rank)]++;
    while (those.first + those.states.size() <= turn) {
      those.states.push_back({std::make_shared<group_state>(world_, order, next_id_++), 0});
    }
    entry& found = those.states[static_cast<std::size_t>(turn - those.first)];
    std::shared_ptr<group_state> out = found.state;
    if (!std::equal(order.begin(), order.end(), out->members().begin())) {
      throw usage_error("the ranks of a group were given in another order by another of its members", at);
    }
    ++found.joined;
    // Who has been joined by all is kept alive by their handles alone.
    while (!those.states.empty() && those.states.front().joined == key.size()) {
      those.states.pop_front();
      ++those.first;
    }
    return out;
  }

 private:
  struct entry {
    std::shared_ptr<group_state> state;
    std::size_t joined;
  };
  struct family {
    std::vector<std::uint64_t> taken;  // per rank of the world
    std::uint64_t first = 0;           // the turn of states.front()
    std::deque<entry> states;
  };

  [[nodiscard]] std::size_t world_size() const noexcept { return static_cast<std::size_t>(world_->ranks()); }

  void expect_member(int rank, const std::vector<int>& sorted, where at) const {
    if (sorted.empty()) throw usage_error("a group needs at least one rank", at);
    if (sorted.front() < 0 || sorted.back() >= world_->ranks()) {
      throw usage_error("a group names a rank outside of the world of " + std::to_string(world_->ranks()), at);
    }
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
      throw usage_error("a group names a rank twice", at);
    }
    if (!std::binary_search(sorted.begin(), sorted.end(), rank)) {
      throw usage_error("rank " + std::to_string(rank) + " makes a group that it is not in", at);
    }
  }

  std::shared_ptr<health> world_;
  std::mutex mutex_;
  std::map<std::vector<int>, family> families_;
  std::uint32_t next_id_ = 0;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
