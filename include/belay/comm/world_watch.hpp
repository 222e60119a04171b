// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How a backend's world bounds the waits for a rank's streams: by its timeout, and by its failure.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <chrono>
#include <concepts>
#include <memory>
#include <string>
#include <utility>

#include "belay/comm/abort_cause.hpp"
#include "belay/comm/async_stream.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_watch.hpp"

namespace belay::inline BELAY_ABI {

/// Of rank `rank` of `world`.
template <world_state World>
requires requires(const World& world) {
  { world.timeout() } -> std::convertible_to<std::chrono::steady_clock::duration>;
}
class world_watch final : public stream_watch {
 public:
  world_watch(std::shared_ptr<World> world, int rank) noexcept : world_(std::move(world)), rank_(rank) {}

  [[nodiscard]] std::chrono::steady_clock::duration limit() const noexcept override { return world_->timeout(); }
  [[nodiscard]] bool failed() const noexcept override { return has_failed(*world_); }
  [[noreturn]] void raise(where at) const override { world_->raise({operation::none, 0, 0, 0, at}); }
  [[noreturn]] void give_up(const std::string& what, where at) const override {
    world_->abort({comm_fault::timeout, {rank_}, what, at.line == 0 ? std::string() : at.text()});
    raise(at);
  }
  void fail(error_kind thrown, const std::string& what, where at) const override {
    const comm_fault fault = thrown == error_kind::communication ? comm_fault::timeout : comm_fault::peer_failed;
    abort_cause why{fault, {rank_}, what, at.line == 0 ? std::string() : at.text()};
    why.thrown = thrown;
    world_->abort(std::move(why));
  }
  [[nodiscard]] int rank() const noexcept override { return rank_; }

 private:
  std::shared_ptr<World> world_;
  int rank_;
};

}  // namespace belay::inline BELAY_ABI
