// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How the ranks of a group meet for one operation: each publishes its fingerprint and its pointers, all wait,
// all compare. From then until all have left, every rank may read every other rank's buffers; that part is
// finite work, so leaving is never interrupted, not even by a rank that fails elsewhere.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host/gate.hpp"
#include "belay/backend/host/health.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// What a rank brings to an operation. The pointers are valid from `enter` to `leave`.
struct contribution {
  fingerprint print;
  const void* input = nullptr;
  void* output = nullptr;
  std::span<const std::size_t> send_counts;
  std::span<const std::size_t> receive_counts;
};

/// The meeting point of one group and one lane.
class rendezvous {
 public:
  rendezvous(health& world, std::span<const int> members, lane which, std::uint32_t group)
      : world_(&world), members_(members), lane_(which), group_(group), seats_(std::make_unique<seat[]>(members.size())) {
    world.enroll(entry_.bell());
  }
  ~rendezvous() { world_->withdraw(entry_.bell()); }
  rendezvous(const rendezvous&) = delete;
  rendezvous& operator=(const rendezvous&) = delete;

  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] health& world() const noexcept { return *world_; }

  /// Returns when all ranks have entered the same operation; throws `comm_error` before any of them has
  /// gone on otherwise. `number` counts this lane's operations.
  void enter(int me, const contribution& mine, where at) {
    seat& here = seats_[static_cast<std::size_t>(me)];
    const std::uint64_t number = here.operations.load(std::memory_order_relaxed);
    const call_site call{mine.print.what, number, mine.print.bytes(), at};
    if (world_->stopped()) world_->raise(call);
    published& slot = here.slots[number % 2];
    slot.mine = mine;
    slot.at = at;
    recorder(me).enter({mine.print.what, false, group_, number, mine.print.bytes(), at});
    // Seen by whoever sees this rank leave the world.
    here.operations.store(number + 1, std::memory_order_release);
    const std::uint64_t target = (number + 1) * members_.size();
    switch (entry_.arrive(number + 1, target)) {
      case gate::verdict::complete: break;
      case gate::verdict::broken: world_->await_stop(); world_->raise(call);
      case gate::verdict::incomplete: await(number + 1, target, call); break;
    }
    compare(me, number);
  }

  /// What rank `who` brought to the operation that rank `me` is in.
  [[nodiscard]] const contribution& of(int me, int who) const noexcept {
    return slot_of(who, current(me)).mine;
  }
  [[nodiscard]] where site_of(int me, int who) const noexcept { return slot_of(who, current(me)).at; }

  /// Returns when nobody reads anybody's buffers any more. Does not fail.
  void leave(int me) noexcept {
    seat& here = seats_[static_cast<std::size_t>(me)];
    const std::uint64_t round = ++here.departures;
    if (exit_.arrive(round, round * members_.size()) == gate::verdict::incomplete) {
      (void)wait_until(exit_.bell(), world_->spins(lane_), [&] { return exit_.complete(round); }, [] { return false; });
    }
    recorder(me).leave();
  }

  /// For operations that read nothing of a peer after the meeting.
  void leave_at_once(int me) noexcept { recorder(me).leave(); }

  /// Between `enter` and `leave`: compares what fingerprints cannot hold. `alike(a, b)` compares two ranks and
  /// `text(rank)` tells what one brought; unless all are alike, every rank leaves and throws `comm_error`.
  template <class Alike, class Text>
  void expect_alike(int me, Alike alike, Text text) {
    if (all_alike(alike)) return;
    const difference found = describe(current(me), alike, text);
    leave(me);  // until here peers read what this rank brought
    refuse(me, found.culprits, found.message, found.there);
  }

  /// Stops the world because the contributions do not fit together; every rank of the group calls it in the
  /// same situation, after `leave`.
  [[noreturn]] void refuse(int me, std::vector<int> culprits, const std::string& message, const std::string& there) {
    const std::uint64_t number = current(me);
    const published& slot = seats_[static_cast<std::size_t>(me)].slots[number % 2];
    world_->stop({comm_fault::mismatch, std::move(culprits), message, there});
    world_->raise({slot.mine.print.what, number, slot.mine.print.bytes(), slot.at});
  }

  [[nodiscard]] int world_rank(int who) const noexcept { return members_[static_cast<std::size_t>(who)]; }

 private:
  struct published {
    contribution mine;
    where at;
  };
  // Two slots: who runs ahead into the next operation does not overwrite what others still compare, and
  // nobody is two ahead.
  struct alignas(64) seat {
    std::array<published, 2> slots;
    std::atomic<std::uint64_t> operations{0};
    std::uint64_t departures = 0;
  };

  [[nodiscard]] std::uint64_t current(int me) const noexcept {
    return seats_[static_cast<std::size_t>(me)].operations.load(std::memory_order_relaxed) - 1;
  }
  [[nodiscard]] const published& slot_of(int who, std::uint64_t number) const noexcept {
    return seats_[static_cast<std::size_t>(who)].slots[number % 2];
  }
  [[nodiscard]] flight_recorder<>& recorder(int me) const noexcept { return world_->recorder(world_rank(me), lane_); }

  void await(std::uint64_t round, std::uint64_t target, const call_site& call) {
    deadline limit(world_->timeout());
    const bool met = wait_until(
        entry_.bell(), world_->spins(lane_), [&] { return entry_.complete(round); },
        [&] { return world_->stopped() || somebody_left(round) || limit.passed(); });
    if (met || entry_.break_off(target) == gate::verdict::complete) return;
    if (!world_->stopped()) give_up(round, call);
    world_->raise(call, limit.seconds());
  }

  [[nodiscard]] bool absent(std::size_t who, std::uint64_t round) const noexcept {
    return seats_[who].operations.load(std::memory_order_acquire) < round;
  }

  [[nodiscard]] bool somebody_left(std::uint64_t round) const noexcept {
    for (std::size_t q = 0; q < members_.size(); ++q) {
      if (world_->left(members_[q], lane_) && absent(q, round)) return true;
    }
    return false;
  }

  void give_up(std::uint64_t round, const call_site& call) {
    first_cause why;
    const std::string awaited = std::string(name(call.what)) + " #" + std::to_string(call.number);
    for (std::size_t q = 0; q < members_.size(); ++q) {
      if (world_->left(members_[q], lane_) && absent(q, round)) why.culprits.push_back(members_[q]);
    }
    if (!why.culprits.empty()) {
      why.fault = comm_fault::peer_failed;
      why.there = world_->recorder(why.culprits.front(), lane_).last().at.text();
      for (int rank : why.culprits) {
        why.message += (why.message.empty() ? "" : ", ") + world_->whereabouts(rank, lane_) + " returned";
      }
      why.message += " and never entered " + awaited;
    } else {
      why.fault = comm_fault::timeout;
      for (std::size_t q = 0; q < members_.size(); ++q) {
        if (!absent(q, round)) continue;
        why.culprits.push_back(members_[q]);
        why.message += (why.message.empty() ? "" : ", ") + world_->whereabouts(members_[q], lane_);
      }
      if (!why.culprits.empty()) why.there = world_->recorder(why.culprits.front(), lane_).last().at.text();
      why.message += " did not arrive in " + awaited + " within " +
                     std::to_string(std::chrono::duration<double>(world_->timeout()).count()) + " s";
    }
    world_->stop(std::move(why));
  }

  void compare(int me, std::uint64_t number) {
    const auto print = [&](int q) -> const fingerprint& { return slot_of(q, number).mine.print; };
    const auto alike = [&](int a, int b) { return print(a) == print(b); };
    if (all_alike(alike)) return;
    const difference found = describe(number, alike, [&](int q) { return print(q).text(); });
    refuse(me, found.culprits, found.message, found.there);
  }

  template <class Alike>
  [[nodiscard]] bool all_alike(Alike alike) const {
    bool same = true;
    for (int q = 1; q < size(); ++q) same = same && alike(0, q);
    return same;
  }

  struct difference {
    std::vector<int> culprits;
    std::string message, there;
  };

  // The smaller camp is to blame; between equals everybody is named.
  template <class Alike, class Text>
  [[nodiscard]] difference describe(std::uint64_t number, Alike alike, Text text) const {
    difference out;
    int largest = 0;
    const auto camp = [&](int who) {
      int votes = 0;
      for (int q = 0; q < size(); ++q) votes += alike(q, who);
      return votes;
    };
    for (int q = 0; q < size(); ++q) largest = std::max(largest, camp(q));
    for (int q = 0; q < size(); ++q) {
      const std::string site = slot_of(q, number).at.text();
      out.message += (q == 0 ? "rank " : ", rank ") + std::to_string(world_rank(q)) + " calls " + text(q);
      out.message += " at " + site;
      if (camp(q) < largest || 2 * largest <= size()) out.culprits.push_back(world_rank(q));
      if (camp(q) < largest && out.there.empty()) out.there = site;
    }
    return out;
  }

  health* world_;
  std::span<const int> members_;
  lane lane_;
  std::uint32_t group_;
  std::unique_ptr<seat[]> seats_;
  gate entry_;
  gate exit_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
