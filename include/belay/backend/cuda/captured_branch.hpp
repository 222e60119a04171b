// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What is in every capture of a rank's device beside the stream that is captured, such as the rank's communications:
// its work begins after the captured stream's begin, is part of the graph, and is over before that ends.
// IWYU pragma: private, include "belay/backend/cuda/stream.hpp"
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

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

}  // namespace belay::inline BELAY_ABI::cuda
