// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Streams of a device that does not exist. Their work runs on the thread that queues or waits, in one of the orders
// that events allow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fakes/cuda/draws.hpp"
#include "fakes/cuda/guarded_memory.hpp"

namespace fakes {

/// When queued work runs. `eager`: at once. `late`: when the host waits, and then only what it waits for. `random`:
/// some while the host queues, the rest when it waits, drawn from all streams whose next work may run.
enum class work_order : std::uint8_t { eager, late, random };

/// The order of one stream.
struct work_queue {
  struct queue_place {
    std::shared_ptr<work_queue> of;
    std::uint64_t number = 0;  // pieces of work before it

    [[nodiscard]] bool reached() const noexcept { return of == nullptr || of->done >= number; }
  };
  struct operation {
    std::function<void()> work;
    queue_place after;
  };

  std::uint64_t number = 0;  // of all, as they were made
  std::deque<operation> waiting;
  std::uint64_t queued = 0;
  std::uint64_t done = 0;
};

class late_queues {
 public:
  late_queues(const guarded_memory& memory, work_order order, std::uint64_t seed)
      : memory_(&memory), order_(order), draw_(seed) {}

  [[nodiscard]] work_queue* make() {
    auto made = make_queue();
    work_queue* const address = made.get();
    queues_.emplace(address, std::move(made));
    return address;
  }
  /// Its work is over afterwards.
  void destroy(work_queue* which) {
    reach(end_of(which));
    queues_.erase(which);
  }
  [[nodiscard]] bool knows(work_queue* which) const { return queues_.count(which) > 0; }
  [[nodiscard]] std::size_t count() const noexcept { return queues_.size(); }

  [[nodiscard]] work_queue::queue_place end_of(work_queue* which) const { return {queues_.at(which), which->queued}; }

  void queue(work_queue* on, work_queue::operation what) {
    on->waiting.push_back(std::move(what));
    ++on->queued;
    if (order_ == work_order::eager) reach(end_of(on));
    if (order_ == work_order::random)
      for (std::uint64_t more = draw_(4); more > 1; --more) static_cast<void>(run_one_of_all());
    opened_.reset();
  }
  /// Runs what has to be over before `place` is reached, and then some. Returns before where that waits for what
  /// another thread has yet to queue.
  void reach(const work_queue::queue_place& place) {
    if (place.reached()) return;
    if (order_ == work_order::random) {
      while (!place.reached() && run_one_of_all()) {
      }
    } else {
      static_cast<void>(reach_late(place));
    }
    opened_.reset();
  }
  /// A queue that is no stream's: where streams meet.
  [[nodiscard]] std::shared_ptr<work_queue> make_meeting() {
    auto made = make_queue();
    if (meetings_.size() >= most_meetings_) {
      std::erase_if(meetings_, [](const auto& each) { return each.expired(); });
      most_meetings_ = 2 * meetings_.size() + 64;
    }
    meetings_.push_back(made);
    return made;
  }
  [[nodiscard]] std::shared_ptr<work_queue> shared(work_queue* which) const { return queues_.at(which); }
  void reach_all() {
    for (const auto& [address, queue] : queues_) reach({queue, queue->queued});
  }

  /// The words that the first kernel that failed has thrown; empty: none has.
  [[nodiscard]] const std::string& failure() const noexcept { return failure_; }

 private:
  [[nodiscard]] std::shared_ptr<work_queue> make_queue() {
    auto made = std::make_shared<work_queue>();
    made->number = ++made_;
    return made;
  }
  [[nodiscard]] bool reach_late(const work_queue::queue_place& place) {
    while (!place.reached()) {
      if (place.of->waiting.empty()) return false;
      const work_queue::queue_place first = place.of->waiting.front().after;
      if (!reach_late(first)) return false;
      run_next(*place.of);
    }
    return true;
  }
  bool run_one_of_all() {
    std::vector<std::shared_ptr<work_queue>> able;
    const auto add = [&](const std::shared_ptr<work_queue>& queue) {
      if (queue != nullptr && !queue->waiting.empty() && queue->waiting.front().after.reached()) able.push_back(queue);
    };
    for (const auto& [address, queue] : queues_) add(queue);
    for (const auto& each : meetings_) add(each.lock());
    if (able.empty()) return false;
    std::sort(able.begin(), able.end(), [](const auto& a, const auto& b) { return a->number < b->number; });
    run_next(*able[draw_(able.size())]);
    return true;
  }
  void run_next(work_queue& of) {
    const work_queue::operation next = std::move(of.waiting.front());
    of.waiting.pop_front();
    try {
      if (failure_.empty() && next.work) {
        if (!opened_) opened_.emplace(*memory_);
        next.work();
      }
    } catch (const std::exception& thrown) {
      failure_ = thrown.what();
    }
    ++of.done;
  }

  const guarded_memory* memory_;
  std::optional<guarded_memory::batch> opened_;  // from the first work of a batch on
  work_order order_;
  draws draw_;
  std::map<work_queue*, std::shared_ptr<work_queue>> queues_;
  std::vector<std::weak_ptr<work_queue>> meetings_;
  std::size_t most_meetings_ = 64;
  std::uint64_t made_ = 0;
  std::string failure_;
};

}  // namespace fakes
