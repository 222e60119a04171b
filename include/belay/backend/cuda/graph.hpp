// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Work that a stream was given once, to be launched again as one piece of work; and what is in every capture of a
// rank's device beside the stream that is captured, such as the rank's communications: its work begins after the
// captured stream's begin, is part of the graph, and is over before that ends.
//
//   belay::cuda::graph<Api> step = kit.stream().capture([&] { kit.each(n, first), kit.each(n, second); });
//   kit.stream().launch(step);
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "belay/backend/cuda/device.hpp"
#include "belay/backend/cuda/stream_state.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// A graph as those know it whose work is in it: it can be ended, once, before its owner does.
class captured_work {
 public:
  /// From any thread. A launch that does not return is left alone after some time.
  virtual void end() noexcept = 0;
  [[nodiscard]] virtual bool ended() const noexcept = 0;

 protected:
  ~captured_work() = default;
};

/// A graph of an Api. The device outlives it. One that is running may be ended.
template <device_api Api>
class graph_handle final : public captured_work {
 public:
  using handle_type = typename Api::graph_type;

  /// Owns what the Api has made.
  graph_handle(const device<Api>& on, handle_type made) noexcept : device_(&on), made_(made) {}
  graph_handle(const graph_handle&) = delete;
  graph_handle& operator=(const graph_handle&) = delete;
  ~graph_handle() { end(); }

  /// Queues all of it, or nothing where it has ended: then false. Throws backend_error.
  [[nodiscard]] bool launch(typename Api::stream_type on, where at) {
    const std::lock_guard lock(using_);
    if (ended_) return false;
    device_->expect(device_->api().launch(made_, on), "launch", 0, at);
    return true;
  }
  void end() noexcept override {
    std::unique_lock lock(using_, std::try_to_lock);
    for (int tries = 0; !lock.owns_lock() && tries < most_tries; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      static_cast<void>(lock.try_lock());
    }
    if (!lock.owns_lock() || ended_) return;
    ended_ = true;
    device_->note(device_->api().destroy_graph(made_), "destroy_graph");
  }
  [[nodiscard]] bool ended() const noexcept override {
    const std::lock_guard lock(using_);
    return ended_;
  }

 private:
  static constexpr int most_tries = 200;  // a millisecond each

  const device<Api>* device_;
  handle_type made_;
  mutable std::mutex using_;
  bool ended_ = false;
};

/// A branch's part of one graph. Called by the thread that launches the graph, on the stream that was captured.
template <device_api Api>
class captured_member {
 public:
  virtual ~captured_member() = default;
  /// The launch comes after what the branch has queued. Throws where the branch has failed.
  virtual void before_launch(const std::shared_ptr<stream_state<Api>>& on, where at) = 0;
  /// Work that the branch queues next comes after the launch.
  virtual void after_launch(const std::shared_ptr<stream_state<Api>>& on, where at) = 0;
};

/// One of a device; called by the rank's own thread.
template <device_api Api>
class captured_branch {
 public:
  /// Before the capture begins: nobody asks for what the branch has queued while that lasts. Throws what has failed.
  virtual void prepare(where at) = 0;
  /// The capture of `on` has begun.
  virtual void fork(stream_state<Api>& on, where at) = 0;
  /// The last that `on` is given: it waits for the branch. Null where the branch has nothing in the graph.
  [[nodiscard]] virtual std::shared_ptr<captured_member<Api>> join(stream_state<Api>& on, where at) = 0;
  /// The capture is over; null: nothing came of it. Also after a `fork` or `join` that has thrown.
  virtual void end_capture(const std::shared_ptr<captured_work>& made) noexcept = 0;

 protected:
  ~captured_branch() = default;
};

/// Made by `stream::capture`, of an Api that is a `capturing_api`. The device outlives it; one that is running may be
/// destroyed.
template <device_api Api>
class graph {
 public:
  using handle_type = graph_handle<Api>;
  using member_type = captured_member<Api>;

  /// Takes what `end_capture` has made. The stream has recorded its places `first` to `last` meanwhile; `members` are
  /// what else is in it.
  graph(std::shared_ptr<handle_type> made, std::uint64_t first, std::uint64_t last,
        std::vector<std::shared_ptr<member_type>> members) noexcept
      : made_(std::move(made)), first_(first), last_(last), members_(std::move(members)) {}
  graph(graph&&) noexcept = default;
  graph& operator=(graph&& other) noexcept {
    std::swap(made_, other.made_);
    std::swap(first_, other.first_);
    std::swap(last_, other.last_);
    std::swap(members_, other.members_);
    std::swap(launched_, other.launched_);
    return *this;
  }
  ~graph() = default;

  /// The Api's own handle, shared with what may have to end it first; the places of the stream that it stands for.
  [[nodiscard]] handle_type& handle() const noexcept { return *made_; }
  [[nodiscard]] std::uint64_t first_place() const noexcept { return first_; }
  [[nodiscard]] std::uint64_t last_place() const noexcept { return last_; }
  /// The branches' parts of the graph.
  [[nodiscard]] std::span<const std::shared_ptr<member_type>> members() const noexcept { return members_; }
  /// True once: of the first launch.
  [[nodiscard]] bool take_first_launch() noexcept { return !std::exchange(launched_, true); }

 private:
  std::shared_ptr<handle_type> made_;
  std::uint64_t first_, last_;
  std::vector<std::shared_ptr<member_type>> members_;
  bool launched_ = false;
};

}  // namespace belay::inline BELAY_ABI::cuda
