// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the ranks of a fake NCCL share: communicators, where their operations meet, and what was refused. The ranks are
// host threads, and their devices one `device_api`, in whose streams an operation is a place that all of its ranks
// reach together. Everything here is called while no call of the device runs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "belay/backend/nccl/nccl_api.hpp"
#include "fakes/cuda/fake_api.hpp"
#include "fakes/nccl/collective_moves.hpp"

namespace fakes {

/// An operation from the first rank that comes to it on.
struct nccl_meeting {
  std::shared_ptr<work_queue> queue;
  std::vector<std::optional<nccl_side>> sides;
  std::size_t come = 0;
  bool broken = false;                                // it is never over
  std::vector<std::shared_ptr<nccl_meeting>> before;  // some rank has come there first

  [[nodiscard]] std::uint64_t length() const noexcept { return sides.size() + 1; }
  [[nodiscard]] bool over() const noexcept { return queue->done >= length(); }
  /// `search` is another number for each search.
  [[nodiscard]] bool comes_after(const nccl_meeting* other, std::uint64_t search) const {
    std::vector<const nccl_meeting*> open{this};
    while (!open.empty()) {
      const nccl_meeting* const next = open.back();
      open.pop_back();
      if (next == other) return true;
      if (std::exchange(next->seen_in, search) == search || next->over()) continue;
      for (const auto& each : next->before) open.push_back(each.get());
    }
    return false;
  }
  mutable std::uint64_t seen_in = 0;

  // What comes after another has a higher level, so most orders need no search.
  std::uint64_t level = 0;
  std::vector<nccl_meeting*> after;
  void raise(std::uint64_t to) {
    if (level >= to) return;
    level = to;
    for (nccl_meeting* each : after) each->raise(to + 1);
  }
  void break_off() {
    broken = true;
    queue->waiting.clear();
  }
};

/// A communicator, as all its ranks know it.
struct nccl_ring {
  explicit nccl_ring(std::size_t ranks) : collectives(ranks), windows(ranks) {}
  std::vector<std::uint64_t> collectives;                                            // that each rank has come to
  std::vector<std::uint64_t> windows;                                                // that each has registered
  std::map<std::pair<int, int>, std::pair<std::uint64_t, std::uint64_t>> transfers;  // sent and received, by pair
  std::map<std::tuple<int, int, std::uint64_t>, std::shared_ptr<nccl_meeting>> meetings;
  std::map<std::uint64_t, std::pair<std::size_t, std::vector<std::byte*>>> window_bases;
};

/// One rank's.
struct nccl_communicator {
  std::shared_ptr<nccl_ring> ring;
  nccl_communicator* parent = nullptr;
  int rank = 0, ranks = 0;
  int device = 0;
  belay::nccl::calls kind = belay::nccl::calls::blocking;
  bool busy = true;    // its making, or that of a child, is not over
  int polls = 0;       // so often it is told so after that
  std::thread::id by;  // who made, or splits it
  std::string error;   // asynchronous
  std::uint64_t splits = 0;
  int registered = 0;                                                        // windows
  std::vector<std::pair<std::shared_ptr<work_queue>, std::uint64_t>> gates;  // of what it has queued
  std::vector<std::shared_ptr<nccl_meeting>> joined;
  std::shared_ptr<int> in_graphs = std::make_shared<int>(0);  // shared by all calls of it that graphs have
};

struct nccl_window {
  nccl_communicator* of = nullptr;
  std::uint64_t number = 0;
  std::byte* memory = nullptr;
};

struct nccl_options {
  int version = 22809;
  int compiled = 22809;
  int team = 0;  // neighbours that load and store each other's windows; 0: none
};

/// How call `at` of a rank fails, counted from 1, where a launch of a graph calls each of its groups; 0: none does.
/// `fails`: it says so, and has had no effect unless it ends something. `asynchronous`: its communicator has an error
/// from then on. `silent`: nothing comes of it.
struct nccl_injection {
  enum class failing_way : std::uint8_t { fails, asynchronous, silent };
  std::uint64_t at = 0;
  failing_way how = failing_way::fails;
};

class nccl_fabric {
 public:
  explicit nccl_fabric(device_api& device, const nccl_options& options = {}) : device_(&device), options_(options) {}

  [[nodiscard]] device_api& device() const noexcept { return *device_; }
  [[nodiscard]] const nccl_options& options() const noexcept { return options_; }
  /// Calls that were made though NCCL forbids them or leaves them undefined.
  [[nodiscard]] const std::vector<std::string>& refusals() const noexcept { return refusals_; }
  /// Whether nothing of it is left.
  [[nodiscard]] bool empty() const noexcept { return communicators_.empty() && windows.empty() && memory.empty(); }

  std::string refuse(const std::string& why) {
    refusals_.push_back(why);
    return why;
  }

  /// A rank that polls for a communicator lets its peers come; how often one that is ready is asked, clocks decide.
  /// While no call of the device runs.
  void let_peers_come(nccl_communicator* on) {
    if (!device_->with_queues([&](late_queues&) { return knows(on) && (on->busy || on->polls > 0); })) return;
    device_->await_turn("async_error");
    device_->let_others();
  }

  /// Empty, or why nobody may ask for its error. Each of two threads would end what one that does not block is doing.
  std::string asked(nccl_communicator* on) {
    if (!knows(on)) return refuse("a communicator that has ended is asked for its error");
    const bool at_work = on->kind == belay::nccl::calls::non_blocking && (on->busy || on->polls > 0);
    const bool another = on->by != std::this_thread::get_id();
    return at_work && another ? refuse("two threads ask a non-blocking communicator") : std::string();
  }

  nccl_communicator* make(std::shared_ptr<nccl_ring> ring, int rank, int ranks, belay::nccl::calls kind) {
    auto made = std::make_unique<nccl_communicator>();
    made->ring = std::move(ring), made->rank = rank, made->ranks = ranks, made->kind = kind;
    made->device = device_->current();
    made->by = std::this_thread::get_id();
    nccl_communicator* const address = made.get();
    communicators_.emplace(address, std::move(made));
    return address;
  }
  [[nodiscard]] bool knows(nccl_communicator* on) const { return communicators_.count(on) > 0; }
  void erase(nccl_communicator* on) {
    for (auto& [id, all] : arrivals_) std::erase(all.alive, on);  // another may get its address
    communicators_.erase(on);
  }

  nccl_communicator* join(const belay::nccl::unique_id& id, int rank, int ranks, belay::nccl::calls kind) {
    arrival& all = arrivals_[id];
    if (all.ring == nullptr) all.ring = std::make_shared<nccl_ring>(static_cast<std::size_t>(ranks));
    nccl_communicator* const made = make(all.ring, rank, ranks, kind);
    for (const nccl_communicator* other : all.alive)
      if (other->device == made->device) made->error = refuse("two ranks on one device");
    all.alive.push_back(made);
    if (++all.come == ranks)
      for (nccl_communicator* each : all.alive) each->busy = false;
    return made;
  }
  void split(nccl_communicator* of, int colour, int key, nccl_communicator*& made, belay::nccl::calls kind) {
    of->busy = true;
    of->polls = 2;
    of->by = std::this_thread::get_id();
    auto& all = splits_[{of->ring.get(), of->splits++}];
    all.push_back({of, colour, key, &made, kind});
    if (static_cast<int>(all.size()) < of->ranks) return;
    std::map<int, std::vector<split_part>> by_colour;
    for (const split_part& each : all) by_colour[each.colour].push_back(each);
    for (auto& [each, parts] : by_colour) {
      std::sort(parts.begin(), parts.end(), [](const split_part& a, const split_part& b) {
        return std::pair(a.key, a.parent->rank) < std::pair(b.key, b.parent->rank);
      });
      const auto ring = std::make_shared<nccl_ring>(parts.size());
      for (std::size_t i = 0; i < parts.size(); ++i) {
        parts[i].parent->busy = false;
        if (each < 0) continue;
        nccl_communicator* const child = make(ring, static_cast<int>(i), static_cast<int>(parts.size()), parts[i].kind);
        child->parent = parts[i].parent;
        child->device = child->parent->device;
        child->busy = false;
        child->polls = 1;
        *parts[i].made = child;
      }
    }
    all.clear();
  }

  /// One rank comes to an operation, after what is queued on its stream. Empty, or what is wrong with it.
  std::string come(nccl_communicator* on, const nccl_side& side, const work_queue::queue_place& after,
                   const std::vector<std::shared_ptr<nccl_meeting>>& earlier, std::shared_ptr<nccl_meeting>& met) {
    const bool transfer = side.what == nccl_call::transfer;
    const bool sends = side.to == nullptr;
    const int from = !transfer ? -1 : sends ? on->rank : side.peer, to = !transfer ? -1 : sends ? side.peer : on->rank;
    auto& pair = on->ring->transfers[{from, to}];
    std::uint64_t& number = !transfer ? on->ring->collectives[static_cast<std::size_t>(on->rank)]
                            : sends   ? pair.first
                                      : pair.second;
    std::shared_ptr<nccl_meeting>& place = on->ring->meetings[{from, to, number++}];
    if (place == nullptr) {
      place = std::make_shared<nccl_meeting>();
      place->queue = device_queues_->make_meeting();
      place->sides.resize(transfer ? 2 : static_cast<std::size_t>(on->ranks));
    }
    met = place;
    for (const auto& each : earlier) {
      if (each->over()) continue;
      if (met->come > 0 && each->level >= met->level && each->comes_after(met.get(), ++searches_))
        return broken(*met, transfer && each->sides.size() == 2
                                ? "opposing sends that are in no group: each waits for the other's receive"
                                : "ranks disagree on the order of two communicators");
      met->before.push_back(each);
      each->after.push_back(met.get());
      met->raise(each->level + 1);
    }
    const std::size_t index = !transfer ? static_cast<std::size_t>(on->rank) : sends ? 0 : 1;
    met->sides[index] = side;
    for (const auto& other : met->sides) {
      if (!other) continue;
      if (!other->agrees(side)) return broken(*met, "ranks call different operations");
      if (other->count != side.count)
        return broken(*met, "unequal counts: " + std::to_string(other->count) + " and " + std::to_string(side.count));
    }
    met->queue->waiting.push_back({{}, after});
    ++met->queue->queued;
    if (++met->come == met->sides.size() && !met->broken) {
      met->queue->waiting.push_back({[met = met.get()] {
                                       std::vector<nccl_side> all;
                                       for (const auto& each : met->sides) all.push_back(*each);
                                       move_elements(all);
                                       met->before.clear();
                                       met->after.clear();
                                     },
                                     {}});
      ++met->queue->queued;
    }
    return "";
  }

  /// Ends what a rank has queued on a communicator; for the others it is never over.
  void release(nccl_communicator* on) {
    for (const auto& each : on->joined)
      if (!each->over()) each->break_off();
    for (const auto& [gate, length] : on->gates) {
      gate->waiting.clear();
      gate->done = std::max(gate->done, length);
    }
    on->gates.clear();
    for (auto& [key, parts] : splits_)  // nobody writes what it was waiting for
      std::erase_if(parts, [&](const split_part& each) { return each.parent == on; });
  }
  [[nodiscard]] std::vector<nccl_communicator*> with_relatives(nccl_communicator* of) const {
    const auto top = [](nccl_communicator* each) { return each->parent == nullptr ? each : each->parent; };
    std::vector<nccl_communicator*> out;
    for (const auto& [address, each] : communicators_)
      if (address == of || (knows(top(of)) && top(address) == top(of))) out.push_back(address);
    return out;
  }

  /// While a call runs.
  void use(late_queues& queues) noexcept { device_queues_ = &queues; }
  [[nodiscard]] late_queues& queues() const noexcept { return *device_queues_; }

  std::map<std::byte*, std::size_t> memory;  // for windows
  std::map<nccl_window*, std::unique_ptr<nccl_window>> windows;
  std::uint8_t ids = 0;

 private:
  struct arrival {
    std::shared_ptr<nccl_ring> ring;
    std::vector<nccl_communicator*> alive;
    int come = 0;
  };
  struct split_part {
    nccl_communicator* parent;
    int colour, key;
    nccl_communicator** made;
    belay::nccl::calls kind;
  };

  std::string broken(nccl_meeting& met, const std::string& why) {
    met.break_off();
    for (const auto& [address, each] : communicators_)  // the others learn of it too
      for (const auto& joined : each->joined)
        if (joined.get() == &met && each->error.empty()) each->error = why;
    return refuse(why);
  }

  device_api* device_;
  nccl_options options_;
  late_queues* device_queues_ = nullptr;
  std::map<nccl_communicator*, std::unique_ptr<nccl_communicator>> communicators_;
  std::map<belay::nccl::unique_id, arrival> arrivals_;
  std::map<std::pair<nccl_ring*, std::uint64_t>, std::vector<split_part>> splits_;
  std::vector<std::string> refusals_;
  std::uint64_t searches_ = 0;
};

}  // namespace fakes
