// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a device that does not exist records between `begin_capture` and `end_capture`, and what it refuses meanwhile:
// what CUDA forbids the thread that captures.
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
#include <utility>
#include <vector>

#include "fakes/cuda/late_queues.hpp"

namespace fakes {

/// Work in the orders of one or more branches; branch 0 is that of the stream that began.
struct recorded_graph {
  struct branch_place {
    std::size_t branch = 0;
    std::size_t number = 0;  // pieces of work before it
  };
  /// Where other ranks are met in a launch, by whoever comes at `behind`: what to wait for then.
  using meeting = std::function<work_queue::queue_place(late_queues&, const work_queue::queue_place& behind)>;
  struct node {
    std::function<void()> work;
    std::optional<branch_place> after;
    meeting meets = {};
  };
  std::vector<std::vector<node>> branches;

  /// Whether the end of every branch is waited for by branch 0, directly or not.
  [[nodiscard]] bool joined() const {
    std::vector<std::size_t> reached(branches.size());
    reached[0] = branches[0].size();
    for (bool more = true; more;) {
      more = false;
      for (std::size_t b = 0; b < branches.size(); ++b)
        for (std::size_t n = 0; n < reached[b]; ++n)
          if (const auto& after = branches[b][n].after; after && reached[after->branch] < after->number) {
            reached[after->branch] = after->number;
            more = true;
          }
    }
    for (std::size_t b = 0; b < branches.size(); ++b)
      if (reached[b] < branches[b].size()) return false;
    return true;
  }

  /// Queues all of it as one piece of work of `on`. Its branches are orders of their own, as a device may take them.
  void queue(late_queues& queues, work_queue* on) const {
    std::vector<std::shared_ptr<work_queue>> orders;
    for (std::size_t b = 0; b < branches.size(); ++b) orders.push_back(queues.make_meeting());
    const work_queue::queue_place begin = queues.end_of(on);
    for (std::size_t b = 0; b < branches.size(); ++b) {
      const auto add = [&](work_queue::operation what) {
        orders[b]->waiting.push_back(std::move(what));
        ++orders[b]->queued;
      };
      add({{}, begin});
      for (const node& each : branches[b]) {
        work_queue::operation next{each.work, {}};
        if (each.after) next.after = {orders[each.after->branch], each.after->number + 1};
        if (each.meets) next.after = each.meets(queues, {orders[b], orders[b]->queued});
        add(std::move(next));
      }
    }
    for (const auto& order : orders) queues.queue(on, {{}, {order, order->queued}});
  }
};

/// The captures that are under way. Of one thread each.
class captures {
 public:
  /// Where an event was recorded: in a capture, or 0.
  struct mark {
    std::uint64_t capture = 0;
    recorded_graph::branch_place at;
  };

  [[nodiscard]] bool any() const noexcept { return !open_.empty(); }
  [[nodiscard]] bool captured(work_queue* which) const { return find(which) != nullptr; }

  std::string begin(work_queue* on) {
    if (captured(on)) return "the stream is captured already";
    auto made = std::make_unique<capture>();
    made->number = ++last_;
    made->by = std::this_thread::get_id();
    made->branch_of.emplace(on, 0);
    made->graph.branches.emplace_back();
    open_.push_back(std::move(made));
    return {};
  }
  /// Ends it, whatever has gone wrong in it: then `made` is nothing.
  std::string end(work_queue* on, std::optional<recorded_graph>& made) {
    capture* const mine = find(on);
    if (mine == nullptr) return "the stream is not captured";
    if (mine->branch_of.at(on) != 0) return refuse(*mine, "a capture is ended on the stream that began it");
    if (mine->by != std::this_thread::get_id()) return refuse(*mine, "a capture is ended by the thread that began it");
    const std::string failure = !mine->failure.empty()  ? "the capture has failed: " + mine->failure
                                : !mine->graph.joined() ? "a stream that was captured too is not joined"
                                                        : std::string();
    if (failure.empty()) made = std::move(mine->graph);
    std::erase_if(open_, [&](const auto& each) { return each.get() == mine; });
    return failure;
  }

  /// A kernel, copy or product on a captured stream, or where other ranks are met.
  std::string add(work_queue* on, std::function<void()> work) { return add(on, {std::move(work), {}}); }
  std::string add(work_queue* on, recorded_graph::node what) {
    capture& mine = *find(on);
    if (!mine.failure.empty()) return "the capture has failed: " + mine.failure;
    mine.order_of(on).push_back(std::move(what));
    return {};
  }
  /// Whether the calling thread captures.
  [[nodiscard]] bool by_this_thread() const {
    const auto mine = [](const auto& each) { return each->by == std::this_thread::get_id(); };
    return std::any_of(open_.begin(), open_.end(), mine);
  }
  mark record(work_queue* on) {
    capture* const mine = find(on);
    if (mine == nullptr) return {};
    return {mine->number, {mine->branch_of.at(on), mine->order_of(on).size()}};
  }
  /// Whether a wait of `on` for that is one of a capture, and what is wrong with it.
  std::optional<std::string> wait(work_queue* on, const mark& event) {
    capture* const mine = find(on);
    capture* its = nullptr;
    for (const auto& each : open_)
      if (each->number == event.capture) its = each.get();
    if (mine == nullptr && event.capture == 0) return std::nullopt;
    if (mine != nullptr && event.capture == 0)
      return refuse(*mine, "a captured stream waits for an event that was recorded outside of the capture");
    if (its == nullptr) {
      const std::string late = "a stream waits for an event that was recorded in a capture that has ended";
      return mine != nullptr ? refuse(*mine, late) : late;
    }
    if (mine != nullptr && mine != its) return refuse(*mine, "a captured stream waits for an event of another capture");
    if (mine == nullptr) {
      its->branch_of.emplace(on, its->graph.branches.size());
      its->graph.branches.emplace_back();
    }
    its->order_of(on).push_back({{}, event.at});
    return std::string();
  }
  /// A refusal of a call by the thread that captures; empty where it does not capture.
  std::string forbid(const char* call) {
    for (const auto& each : open_)
      if (each->by == std::this_thread::get_id()) return refuse(*each, std::string(call) + " in a capture");
    return {};
  }
  /// A refusal of a call with an event of a capture, and by the thread that captures with any.
  std::string forbid(const char* call, const mark& event) {
    if (event.capture == 0) return forbid(call);
    const std::string what = std::string(call) + " of an event that was recorded in a capture";
    for (const auto& each : open_)
      if (each->number == event.capture) return refuse(*each, what);
    return what;
  }
  /// A stream that ends while it is captured.
  std::string forbid(const char* call, work_queue* on) {
    capture* const mine = find(on);
    if (mine == nullptr) return {};
    std::string what = refuse(*mine, std::string(call) + " of a captured stream");
    if (mine->branch_of.at(on) == 0) std::erase_if(open_, [&](const auto& each) { return each.get() == mine; });
    return what;
  }

 private:
  struct capture {
    std::uint64_t number = 0;
    std::thread::id by;
    std::map<work_queue*, std::size_t> branch_of;
    recorded_graph graph;
    std::string failure;  // the first

    [[nodiscard]] std::vector<recorded_graph::node>& order_of(work_queue* on) {
      return graph.branches[branch_of.at(on)];
    }
  };

  [[nodiscard]] capture* find(work_queue* on) const {
    for (const auto& each : open_)
      if (each->branch_of.count(on) > 0) return each.get();
    return nullptr;
  }
  static std::string refuse(capture& of, std::string what) {
    if (of.failure.empty()) of.failure = what;
    return what;
  }

  std::vector<std::unique_ptr<capture>> open_;
  std::uint64_t last_ = 0;
};

}  // namespace fakes
