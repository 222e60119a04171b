// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The operations of a rank over NCCL that one graph has, from its capture to its end.
// IWYU pragma: private, include "belay/backend/nccl.hpp"
#pragma once

#include <memory>
#include <utility>

#include "belay/backend/cuda/captured_branch.hpp"
#include "belay/backend/cuda/stream_state.hpp"
#include "belay/backend/nccl/captured_operations.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_event.hpp"

namespace belay::inline BELAY_ABI::nccl {

/// Keeps the rank's channel, to which a launch is one operation.
template <cuda::device_api Api, class Channel>
class graph_member final : public cuda::captured_member<Api> {
 public:
  using state_type = cuda::stream_state<Api>;

  graph_member(std::shared_ptr<Channel> of, captured_calls calls) noexcept
      : of_(std::move(of)), calls_(std::move(calls)) {}
  void before_launch(const std::shared_ptr<state_type>& on, where at) override {
    after_ = of_->before_launch(calls_, on, at);
  }
  void after_launch(const std::shared_ptr<state_type>& on, where at) override {
    of_->after_launch(calls_, after_, on, at);
    if (std::exchange(first_, false)) of_->stream().state()->renew(calls_.places.first, calls_.places.last, at);
  }

 private:
  std::shared_ptr<Channel> of_;
  captured_calls calls_;
  stream_event after_;
  bool first_ = true;
};

}  // namespace belay::inline BELAY_ABI::nccl
